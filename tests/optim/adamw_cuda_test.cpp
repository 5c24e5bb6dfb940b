// Whole optimisers on a GPU: they must equal those of the CPU, and their state can be saved and loaded.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "d9d/optim/adamw.h"
#include "d9d/optim/build_optimizer.h"
#include "d9d/optim/stochastic_adamw.h"

#include "tests/optim/copy_state.h"
#include "tests/support/compare.h"
#include "tests/support/gpu_test.h"

namespace d9d::adamw_cuda_test {
namespace {

class OptimizerCuda : public test::GpuTest {};

constexpr std::int64_t kSize = 10'007;

// Names and leaves of several sizes, dtypes and strides.
std::vector<NamedParameter> parameters(at::Device device, const std::vector<at::ScalarType>& dtypes) {
  std::vector<NamedParameter> result;
  for (const at::ScalarType dtype : dtypes) {
    const at::Tensor values = at::sin(at::arange(kSize, at::kDouble) + static_cast<double>(result.size()));
    result.push_back({"p" + std::to_string(result.size()), values.to(device, dtype).requires_grad_()});
  }
  return result;
}

template <class Optimizer>
void run_steps(Optimizer& optimizer, const std::vector<NamedParameter>& leaves, int first, int last) {
  for (int step = first; step < last; ++step) {
    for (const NamedParameter& parameter : leaves) {
      const at::Tensor& leaf = parameter.tensor;
      const at::Tensor grad = at::cos(at::arange(kSize, at::kDouble) * 0.3 + step);
      leaf.mutable_grad() =
          grad.to(leaf.device(), leaf.scalar_type() == at::kBFloat16 ? at::kFloat : leaf.scalar_type());
    }
    optimizer.step(0.01, at::full({}, 0.5, leaves.front().tensor.options().dtype(at::kDouble).requires_grad(false)));
  }
}

TEST_F(OptimizerCuda, AdamW_steps_as_on_the_cpu) {
  for (const AdamWConfig& config :
       {AdamWConfig{.lr = 0.01}, AdamWConfig{.lr = 0.01, .amsgrad = true, .maximize = true}}) {
    const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble, at::kFloat};
    const auto on_gpu = parameters(at::kCUDA, dtypes), on_cpu = parameters(at::kCPU, dtypes);
    AdamW ours(on_gpu, config), expected(on_cpu, config);
    run_steps(ours, on_gpu, 0, 20);
    run_steps(expected, on_cpu, 0, 20);
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      test::expect_close(on_gpu[i].name, on_gpu[i].tensor.cpu(), on_cpu[i].tensor,
                         test::tolerance(dtypes[i] == at::kDouble ? "fp64" : "fp32"));
    }
  }
}

TEST_F(OptimizerCuda, All_others_and_groups_step_as_on_the_cpu) {
  const std::vector<BetasGroupConfig> groups = {
      {.group = {.name = "first", .parameters = "p0", .lr_factor = 0.5, .weight_decay = 0.2}}};
  for (const OptimizerConfig& config :
       {OptimizerConfig(AdamWConfig{.lr = 0.01, .groups = groups}),
        OptimizerConfig(AdamConfig{.lr = 0.01, .weight_decay = 0.1, .groups = groups}),
        OptimizerConfig(SgdConfig{.lr = 0.01, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1}),
        OptimizerConfig(SgdConfig{.lr = 0.01}),
        OptimizerConfig(LionConfig{.lr = 0.01, .weight_decay = 0.1, .groups = groups})}) {
    const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble, at::kFloat};
    const auto on_gpu = parameters(at::kCUDA, dtypes), on_cpu = parameters(at::kCPU, dtypes);
    Optimizer ours = build_optimizer(config, on_gpu), expected = build_optimizer(config, on_cpu);
    run_steps(ours, on_gpu, 0, 20);
    run_steps(expected, on_cpu, 0, 20);
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      test::expect_close(on_gpu[i].name, on_gpu[i].tensor.cpu(), on_cpu[i].tensor,
                         test::tolerance(dtypes[i] == at::kDouble ? "fp64" : "fp32"));
    }
  }
}

TEST_F(OptimizerCuda, StochasticAdamW_continues_bit_equal_from_state_that_is_filled_in) {
  for (const Dtype state_dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    const StochasticAdamWConfig config{.lr = 0.01, .state_dtype = state_dtype};
    const std::vector<at::ScalarType> dtypes = {at::kBFloat16, at::kFloat, at::kBFloat16};
    auto first = parameters(at::kCUDA, dtypes), second = parameters(at::kCUDA, dtypes);
    StochasticAdamW saved(first, config, /*seed=*/1), loaded(second, config, /*seed=*/2);
    run_steps(saved, first, 0, 3);
    test::copy_state(saved, loaded);
    {
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < first.size(); ++i) second[i].tensor.copy_(first[i].tensor);
    }
    run_steps(saved, first, 3, 5);
    run_steps(loaded, second, 3, 5);
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i].tensor, second[i].tensor));
  }
}

TEST_F(OptimizerCuda, Marks_its_writes_for_autograd) {
  const auto leaves = parameters(at::kCUDA, {at::kFloat});
  const at::Tensor loss = (leaves[0].tensor * leaves[0].tensor).sum();
  AdamW optimizer(leaves, {});
  run_steps(optimizer, leaves, 0, 1);
  EXPECT_THROW(loss.backward(), c10::Error);
}

}  // namespace
}  // namespace d9d::adamw_cuda_test
