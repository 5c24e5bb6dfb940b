// Ranks that are processes with a GPU each and communicate over NCCL, for run_ranks.
//
// The test runs again in each of them: a rank does nothing where the test calls for ranks, but for the one call that it
// was started for, and ends there. So tests may call several times; what they do between the calls must not matter.
#pragma once

#include <cstdint>
#include <functional>

#include "d9d/core/communicator/world.h"

namespace d9d::test {

// Whether this machine has as many GPUs: tests skip elsewhere.
[[nodiscard]] bool has_gpus(std::int64_t num);

// One GPU a rank. An exception of `body`, or an expectation that failed there, fails it.
void run_gpu_ranks(std::int64_t num_ranks, const std::function<void(World&)>& body);

}  // namespace d9d::test
