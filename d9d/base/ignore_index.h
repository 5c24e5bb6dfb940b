// The label that losses and metrics skip, as in PyTorch's cross entropy.
#pragma once

#include <cstdint>

namespace d9d {

inline constexpr std::int64_t kIgnoreIndex = -100;

}  // namespace d9d
