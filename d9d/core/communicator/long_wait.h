// When a rank says for whom it waits: an hour without a word looks like a hang.
#pragma once

#include <algorithm>
#include <chrono>

namespace d9d {

// How long a rank that waits for others at most `timeout` is silent.
[[nodiscard]] inline std::chrono::milliseconds long_wait(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(std::chrono::seconds(60), timeout / 2);
}

}  // namespace d9d
