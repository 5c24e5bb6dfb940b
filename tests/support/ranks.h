// Runs a test body on several ranks, which are threads of the test (d9d/testing/ranks.h) or processes with GPUs.
//
// Example
//   run_ranks(RankBackend::kThreads, 4, [](World& world) {
//     const auto all = world.communicator(group_of(world, "all"));
//     const at::Tensor one = at::ones({1});
//     all->all_reduce(one, ReduceOp::kSum).wait();
//     EXPECT_EQ(one.item<float>(), 4);
//   });
//
// A rank that throws, or that leaves the body after a failed ASSERT_*, aborts the others; the first exception is
// rethrown when all have ended. Operators of LibTorch use one thread for each rank. All ranks run the same body object:
// each rank may write only its own data.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "d9d/core/communicator/world.h"

namespace d9d::test {

// How the ranks communicate: as threads through shared memory, as threads over Gloo as processes would, or as processes
// with one GPU each over NCCL (gpu_ranks.h).
enum class RankBackend : std::uint8_t { kThreads, kGloo, kNccl };
[[nodiscard]] const char* to_string(RankBackend backend);

// A group of the given ranks, which must include this one, or of all ranks of the job.
[[nodiscard]] RankGroup group_of(const World& world, std::string name, std::vector<std::int64_t> ranks = {});

// For a rank's mesh or context, which keep a shared pointer; this one owns nothing.
[[nodiscard]] inline std::shared_ptr<World> borrowed(World& world) { return {std::shared_ptr<World>(), &world}; }

// One rank of a job whose other ranks do not exist: for code that does not communicate.
[[nodiscard]] std::shared_ptr<World> lone_rank(std::int64_t rank, std::int64_t num_ranks);

// A test that exceeds the limit fails, and its ranks are aborted. Over NCCL each rank has a GPU (has_gpus), and what a
// rank writes stays in its process.
void run_ranks(RankBackend backend, std::int64_t num_ranks, const std::function<void(World&)>& body,
               std::chrono::seconds time_limit = std::chrono::seconds(60));

}  // namespace d9d::test
