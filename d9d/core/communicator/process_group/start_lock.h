// c10d writes each operation that starts into one record of the process (its flight recorder), partly without a lock.
#pragma once

#include <mutex>

namespace d9d {

// Hold it while an operation of any process group starts; never while one is waited for.
[[nodiscard]] std::unique_lock<std::mutex> lock_starts();

}  // namespace d9d
