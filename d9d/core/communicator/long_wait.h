// Decides when a rank that waits for others logs which ranks are missing, so that a long wait does not look like a
// hang.
#pragma once

#include <algorithm>
#include <chrono>

namespace d9d {

// Returns how long a rank waits for others before it logs that it waits: 60 s, or half of `timeout` if that is less.
[[nodiscard]] inline std::chrono::milliseconds long_wait(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(std::chrono::seconds(60), timeout / 2);
}

}  // namespace d9d
