// A lock for c10d's flight recorder, the process-wide record of started operations, which c10d writes partly unlocked.
#pragma once

#include <mutex>

namespace d9d {

// Hold the lock while an operation of any process group starts, but never while waiting for one.
[[nodiscard]] std::unique_lock<std::mutex> lock_starts();

}  // namespace d9d
