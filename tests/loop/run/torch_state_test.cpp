// State of torch.optim, written by the function of docs/optimizers.md, goes on in our optimisers as it does in torch.
#include <filesystem>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "d9d/base/config/record_json.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/optim/build_optimizer.h"

#include "tests/support/python.h"
#include "tests/support/ranks.h"

namespace d9d::test::torch_state_test {
namespace {

constexpr std::int64_t kSize = 37;

// Fills the optimiser's state from a file with a tensor for each of its entries. Each rank keeps its part.
void read_torch_state(const d9d::Optimizer& optimizer, const std::filesystem::path& path) {
  const d9d::SafetensorsFile file(path);
  for (const auto& [name, entry] : optimizer.state_dict()) {
    const at::Tensor whole = file.tensor(name);
    const bool is_whole = entry.mesh.axes().empty();  // a count of steps
    const at::Tensor part = is_whole ? whole : d9d::distribute(whole, entry.mesh, entry.placements).local;
    entry.local.copy_(part.view_as(entry.local));
  }
}

// Parameters as torch_optim_oracle.py saves them, of which each of `num_ranks` ranks has a part.
std::vector<NamedParameter> parameters(const std::filesystem::path& folder, const DeviceMesh& mesh) {
  const SafetensorsFile file(folder / "model.safetensors");
  std::vector<NamedParameter> result;
  for (const char* const name : {"layer.weight", "layer.bias", "embedding", "head.weight"}) {
    const at::Tensor whole = file.tensor(name);
    result.push_back({.name = name,
                      .tensor = distribute(whole, mesh, {Shard{0}}).local.clone().requires_grad_(),
                      .global_shape = whole.sizes().vec(),
                      .mesh = mesh,
                      .placements = {Shard{0}}});
  }
  return result;
}

// Steps 50 to 99 of the oracle.
at::Tensor go_on(const OptimizerConfig& config, const std::filesystem::path& folder, const DeviceMesh& mesh) {
  const std::vector<NamedParameter> leaves = parameters(folder, mesh);
  Optimizer optimizer = build_optimizer(config, leaves);
  read_torch_state(optimizer, folder / "optimizer.safetensors");
  for (int step = 50; step < 100; ++step) {
    for (std::int64_t index = 0; index < std::ssize(leaves); ++index) {
      const at::Tensor grad = at::cos(at::arange(kSize, at::kDouble) + 0.37 * step + 10 * index) / (1 + 0.05 * step);
      const NamedParameter& leaf = leaves[static_cast<std::size_t>(index)];
      leaf.tensor.mutable_grad() = distribute(grad, mesh, {Shard{0}}).local;
    }
    optimizer.step(optimizer.learning_rate() * (1 - 0.005 * step));
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> whole;
  for (const NamedParameter& leaf : leaves) whole.push_back(full_tensor(leaf.laid_out(leaf.tensor)));
  return at::cat(whole);
}

TEST(TorchState, Continues_in_each_optimiser_on_any_number_of_ranks) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "d9d_torch_state";
  const std::vector<OptimizerConfig> configs = {AdamWConfig{.lr = 1e-2, .amsgrad = true}, AdamConfig{.lr = 1e-2},
                                                SgdConfig{.lr = 1e-2, .momentum = 0.9, .dampening = 0.5},
                                                LionConfig{.lr = 1e-2}};
  Json records = Json::array();
  for (const OptimizerConfig& config : configs) records.push_back(write_record(config));
  std::istringstream numbers(run_python("tests/optim/torch_optim_oracle.py", {records.dump(), folder.string()}));
  for (std::size_t i = 0; i < configs.size(); ++i) {
    std::vector<double> values(2 * 4 * kSize);  // of fp64, then of fp32
    for (double& value : values) ASSERT_TRUE(numbers >> value);
    values.resize(4 * kSize);
    const at::Tensor expected = at::tensor(values, at::kDouble);
    for (const std::int64_t num_ranks : {1, 2}) {
      run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
        const DeviceMesh mesh("ranks", {{"shard", num_ranks}}, borrowed(world));
        constexpr double kFp64 = 1e-12;  // 50 steps of some ten roundings
        EXPECT_TRUE(at::allclose(go_on(configs[i], folder / std::to_string(i), mesh), expected, kFp64, kFp64))
            << records[i].dump();
      });
    }
  }
}

}  // namespace
}  // namespace d9d::test::torch_state_test
