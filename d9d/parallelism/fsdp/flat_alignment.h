// Where parameters and slices of flat groups begin.
#pragma once

#include <cstdint>

namespace d9d {

// In elements, for parameters and slices: at least the bytes below in every dtype.
inline constexpr std::int64_t kFlatAlignment = 128;
// As allocators of devices align, and as kernels want the tensors that they read in vectors.
inline constexpr std::int64_t kFlatAlignmentBytes = 256;

}  // namespace d9d
