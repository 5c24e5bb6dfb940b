// When a waiting rank logs which ranks it waits for: an hour without a line would look like a hang.
#pragma once

#include <algorithm>
#include <chrono>

namespace d9d {

// How long a rank waits for others before it logs that, if its timeout is `timeout`.
[[nodiscard]] inline std::chrono::milliseconds long_wait(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(std::chrono::seconds(60), timeout / 2);
}

}  // namespace d9d
