// Snapshots of a GPU's memory beside traces of steps.
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>

#include "tests/loop/run/toy_job.h"
#include "tests/support/cuda_test.h"

namespace d9d::test::memory_snapshots_cuda_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class MemorySnapshotsCuda : public CudaTest {};

TEST_F(MemorySnapshotsCuda, Are_beside_each_trace_with_the_functions_that_allocate) {
  const fs::path folder = fs::path(::testing::TempDir()) / "d9d_memory_snapshots";
  fs::remove_all(folder);
  std::vector<std::vector<toy::Batch>> packs;
  for (std::int64_t step = 0; step < 4; ++step) packs.push_back({toy::samples(2 * step, 2)});
  toy::Job job(packs);
  job.config.profiling = {
      .traces_dir = folder, .period_steps = 2, .warmup_steps = 0, .active_steps = 1, .memory_snapshots = true};
  const DistContext context({.world = one_rank_world(at::Device(at::kCUDA, 0))});
  (void)job.make_trainer(context, job.task).train();
  for (const char* const steps : {"steps-1-1", "steps-3-3"}) {
    EXPECT_TRUE(fs::exists(folder / steps / "rank0.json"));
    std::ifstream file(folder / steps / "rank0.memory.pickle", std::ios::binary);
    const std::string pickle((std::istreambuf_iterator<char>(file)), {});
    EXPECT_THAT(pickle, AllOf(StartsWith("\x80\x02"), HasSubstr("device_traces"), HasSubstr("free_completed"),
                              HasSubstr("at::_ops::tanh")));
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace d9d::test::memory_snapshots_cuda_test
