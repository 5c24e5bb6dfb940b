// How packs of neighbouring elements map to blocks of random numbers, which decides the kernel that runs. Free of torch
// headers.
#pragma once

#include "d9d/core/rng/random_stream.h"

namespace d9d::kernels::detail {

enum class NoiseLayout {
  kOneRow,     // the part is contiguous in the whole tensor, and no pack crosses a block
  kRows,       // the part is several rows; no pack crosses a row or a block
  kScattered,  // anything else: random bits are drawn for each element separately
};

// The layout for packs that start at multiples of `pack_size`, which divides 8.
[[nodiscard]] constexpr NoiseLayout noise_layout(const ElementRows& rows, std::int64_t pack_size) {
  if (rows.is_one_row())
    return (rows.start + rows.begin) % pack_size == 0 ? NoiseLayout::kOneRow : NoiseLayout::kScattered;
  const bool fits = rows.begin % pack_size == 0 && rows.start % pack_size == 0 && rows.row_size % pack_size == 0 &&
                    rows.row_pitch % pack_size == 0;
  return fits ? NoiseLayout::kRows : NoiseLayout::kScattered;
}

}  // namespace d9d::kernels::detail
