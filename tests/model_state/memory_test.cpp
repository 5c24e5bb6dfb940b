// Memory beyond the parameters while a large folder is loaded and written. The folder is a sparse file: it has no
// blocks on the disk, and its pages are zeros.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/model_state/convert_model_state.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/io/safetensors_header.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/model_state/write_model_state.h"

#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::memory_test {
namespace {
namespace fs = std::filesystem;

constexpr std::int64_t kMiB = 1 << 20;

// 8 GiB in the full run, 256 MiB otherwise: D9D_MEMORY_TEST_MIB.
std::int64_t num_matrices() {
  const char* const mib = std::getenv("D9D_MEMORY_TEST_MIB");
  return (mib == nullptr ? 256 : std::atoll(mib)) / 32;
}

std::vector<std::string> names(const std::string& stem, std::int64_t count) {
  std::vector<std::string> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(cat(stem, i));
  return result;
}

// Matrices of 32 MiB in one file without blocks.
HuggingFaceDirectory sparse_folder(const fs::path& folder) {
  std::vector<TensorSource> tensors;
  for (const std::string& name : names("m", num_matrices())) {
    tensors.push_back({.name = name, .dtype = at::kFloat, .shape = {4096, 2048}, .read = {}});
  }
  std::int64_t bytes = 0;
  for (const TensorSource& tensor : tensors) bytes += num_bytes(tensor);
  const std::string header = format_safetensors_header(in_safetensors_order(tensors), {});
  std::ofstream(folder / "model.safetensors", std::ios::binary) << header;
  fs::resize_file(folder / "model.safetensors", header.size() + static_cast<std::size_t>(bytes));
  return HuggingFaceDirectory(folder);
}

// Private memory of this process that no file stands behind, in bytes.
std::int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::atoll(line.c_str() + 8) * 1024;
  }
  throw IoError("no RssAnon in /proc/self/status");
}

// The most that this process had while `work` ran, beyond what it had before. A thread looks all the time.
std::int64_t growth_during(const std::function<void()>& work) {
  const std::int64_t before = anonymous_bytes();
  std::atomic<bool> is_done = false;
  std::int64_t most = 0;
  std::thread watcher([&] {
    while (!is_done) {
      most = std::max(most, anonymous_bytes());
      std::this_thread::yield();
    }
  });
  work();
  is_done = true;
  watcher.join();
  return std::max(most, anonymous_bytes()) - before;
}

struct Model : Module {
  explicit Model(const std::vector<std::string>& names_of_parameters, std::vector<std::int64_t> shape = {4096, 2048}) {
    for (const std::string& name : names_of_parameters) {
      register_parameter(name, {.shape = shape, .init = init::zeros()});
    }
  }
};

// Every parameter with the same memory, which is there before: what they hold is not looked at.
ModulePtr<Model> over_one_block(const std::vector<std::string>& names_of_parameters,
                                const std::vector<std::int64_t>& shape = {4096, 2048}) {
  auto model = make_module<Model>(names_of_parameters, shape);
  const at::Tensor block = at::ones(shape);
  for (const auto& [name, parameter] : model->named_parameters()) parameter->replace_local(block.detach());
  return model;
}

TEST(ModelStateMemory, Moves_elements_with_buffers_of_64_MiB) {
  const HuggingFaceDirectory directory = sparse_folder(test::fresh_directory("d"));
  std::vector<StateMapper> mappers;
  for (const std::string& name : names("m", num_matrices())) {
    mappers.push_back(mapper::sequential({mapper::transpose(name, 0, 1), mapper::cast(name, at::kBFloat16)}));
  }
  const StateMapper moving = mapper::parallel(std::move(mappers));
  const auto model = over_one_block(names("m", num_matrices()), {2048, 4096});
  const std::int64_t growth = growth_during([&] { (void)load_model_state(*model, moving, tensors_of(directory)); });
  std::cout << "moving elements: " << growth / kMiB << " MiB beyond the parameters\n";
  EXPECT_LE(growth, 64 * kMiB);
}

TEST(ModelStateMemory, Has_one_group_with_a_function_at_a_time) {
  const HuggingFaceDirectory directory = sparse_folder(test::fresh_directory("d"));
  std::vector<StateMapper> mappers;
  const std::vector<std::string> inputs = names("m", num_matrices());
  std::vector<std::string> outputs;
  for (std::size_t i = 0; i + 1 < inputs.size(); i += 2) {  // groups of 64 MiB
    outputs.push_back(cat("sum", i));
    mappers.push_back(mapper::function("sum", {inputs[i], inputs[i + 1]}, {outputs.back()},
                                       [](const auto& x) { return std::vector<at::Tensor>{x[0] + x[1]}; }));
  }
  const auto model = over_one_block(outputs);
  const std::int64_t growth =
      growth_during([&] { (void)load_model_state(*model, mapper::parallel(mappers), tensors_of(directory)); });
  std::cout << "functions: " << growth / kMiB << " MiB beyond the parameters, groups of 64 MiB\n";
  EXPECT_LE(growth, 64 * kMiB * 11 / 10 + 64 * kMiB);
}

TEST(ModelStateMemory, Converts_with_one_output_a_worker) {
  const fs::path root = test::fresh_directory("d");
  const HuggingFaceDirectory directory = sparse_folder(root);
  const std::vector<std::string> all = names("m", std::min<std::int64_t>(num_matrices(), 64));
  constexpr int kWorkers = 2;
  const std::int64_t growth = growth_during([&] {
    convert_model_state(root / "m", mapper::identities({all.begin(), all.end()}), tensors_of(directory),
                        {.max_shard_bytes = 64 * kMiB, .num_workers = kWorkers});
  });
  std::cout << "converting: " << growth / kMiB << " MiB, outputs of 32 MiB, " << kWorkers << " workers\n";
  EXPECT_LE(growth, kWorkers * (32 * kMiB + 16 * kMiB) + 32 * kMiB);
}

// Four ranks in one process: together at most one output and one message a rank; shards of 64 MiB are never in memory.
TEST(ModelStateMemory, Exports_with_one_group_and_one_shard_a_rank) {
  const fs::path root = test::fresh_directory("d");
  const std::vector<std::string> all = names("m", std::min<std::int64_t>(num_matrices(), 32));
  constexpr std::int64_t kRanks = 4;
  std::int64_t growth = 0;
  test::run_ranks(test::RankBackend::kThreads, kRanks, [&](World& world) {
    const DeviceMesh job("m", {{"r", kRanks}}, test::borrowed(world));
    const at::Tensor part = distribute(at::ones({4096, 2048}), job, {d9d::Shard{0}}).local;
    std::map<std::string, DTensor> state;
    for (const std::string& name : all) {
      state.emplace(name,
                    DTensor{.local = part, .mesh = job, .placements = {d9d::Shard{0}}, .global_shape = {4096, 2048}});
    }
    const auto write = [&] {
      (void)write_model_state(root / "m", mapper::identities({all.begin(), all.end()}), state, job,
                              {.max_shard_bytes = 64 * kMiB});
    };
    if (world.rank() == 0) {
      growth = growth_during(write);
    } else {
      write();
    }
  });
  std::cout << "export on 4 ranks: " << growth / kMiB << " MiB, groups of 32 MiB, shards of 64 MiB\n";
  EXPECT_LE(growth, kRanks * (32 + 64) * kMiB);
}

}  // namespace
}  // namespace d9d::memory_test
