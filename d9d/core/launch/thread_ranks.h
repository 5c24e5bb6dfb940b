// All ranks of a job as threads of this process: on CPUs, and in tests.
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

// Runs body(world of the rank) on one thread a rank and returns when all have ended. When one throws, what the others
// wait for fails; then the first exception is thrown again, its text behind "rank <r>: ". A rank that has not ended
// `grace` later is stuck outside of communication, and a thread cannot be ended: then the process ends, with that text
// on standard error and exit code 1.
void run_thread_ranks(std::int64_t num_ranks, const std::function<void(const std::shared_ptr<World>& world)>& body,
                      std::chrono::milliseconds grace = std::chrono::seconds(5));

}  // namespace d9d
