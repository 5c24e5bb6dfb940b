// The alignment of parameters and slices of flat groups.
#pragma once

#include <cstdint>

namespace d9d {

// In elements. In every dtype these are at least kFlatAlignmentBytes.
inline constexpr std::int64_t kFlatAlignment = 128;
// In bytes. Device allocators align as much, and it suffices for kernels with vectorised loads.
inline constexpr std::int64_t kFlatAlignmentBytes = 256;

}  // namespace d9d
