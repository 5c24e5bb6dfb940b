// Ranks that are processes with one GPU each and communicate over NCCL, for run_ranks.
//
// The test runs again in each of these processes. A rank's process skips every call of run_gpu_ranks but the one that
// it was started for, and ends there. A test may therefore make several calls; code between the calls must have no
// effect on them: what changes files asks is_gpu_rank().
#pragma once

#include <cstdint>
#include <functional>

#include "d9d/core/communicator/world.h"

namespace d9d::test {

// Whether this machine has GPUs for `num` ranks: otherwise tests skip. D9D_TEST_RANKS_PER_GPU lets ranks share one.
[[nodiscard]] bool has_gpus(std::int64_t num);

// Whether this process is a rank of run_gpu_ranks, and not the one that waits for the ranks.
[[nodiscard]] bool is_gpu_rank();

// Runs `body` with one GPU for each rank. Fails if `body` throws or an expectation in it fails.
void run_gpu_ranks(std::int64_t num_ranks, const std::function<void(World&)>& body);

}  // namespace d9d::test
