// Runs all ranks of a job as threads of this process, for CPUs and for tests.
//
// Example
//   run_thread_ranks(4, [](const std::shared_ptr<World>& world) { ... });
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "d9d/core/communicator/world.h"

namespace d9d {

// Runs body(world of the rank) on one thread for each rank and returns when all have ended. When a rank throws, pending
// communication of the others fails. Then the first exception that is not a consequence of another rank's failure
// (PeerFailedError), or the first one if all are, is thrown again, with "rank <r>: " before its text. A rank that has
// not ended `grace` after the first exception is stuck outside of communication. Since threads cannot be ended from
// outside, the process then ends with that text on standard error and exit code 1.
void run_thread_ranks(std::int64_t num_ranks, const std::function<void(const std::shared_ptr<World>& world)>& body,
                      std::chrono::milliseconds grace = std::chrono::seconds(5));

}  // namespace d9d
