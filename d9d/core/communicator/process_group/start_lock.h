// c10d records each operation that starts in one process-wide record (its flight recorder), partly without a lock.
#pragma once

#include <mutex>

namespace d9d {

// Hold the lock while an operation of any process group starts, but never while waiting for one.
[[nodiscard]] std::unique_lock<std::mutex> lock_starts();

}  // namespace d9d
