// The alignment of parameters and slices of flat groups.
#pragma once

#include <cstdint>

namespace d9d {

// In elements: at least kFlatAlignmentBytes in dtypes of two bytes or more.
inline constexpr std::int64_t kFlatAlignment = 128;
// In bytes: the alignment that device allocators guarantee and that suffices for kernels with vectorised loads.
inline constexpr std::int64_t kFlatAlignmentBytes = 256;

}  // namespace d9d
