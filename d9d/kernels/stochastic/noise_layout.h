// How packs of neighbouring elements lie in the blocks of random numbers: decides which kernel runs. Free of torch
// headers.
#pragma once

#include "d9d/core/rng/random_stream.h"

namespace d9d::kernels::detail {

enum class NoiseLayout {
  kOneRow,     // packs are neighbours in the whole tensor and do not cross a block
  kRows,       // the same, in rows that a pack does not cross
  kScattered,  // anything else: each element for itself
};

// For packs that start at multiples of `pack_size`, which divides 8.
[[nodiscard]] constexpr NoiseLayout noise_layout(const ElementRows& rows, std::int64_t pack_size) {
  if (rows.is_one_row())
    return (rows.start + rows.begin) % pack_size == 0 ? NoiseLayout::kOneRow : NoiseLayout::kScattered;
  const bool fits = rows.begin % pack_size == 0 && rows.start % pack_size == 0 && rows.row_size % pack_size == 0 &&
                    rows.row_pitch % pack_size == 0;
  return fits ? NoiseLayout::kRows : NoiseLayout::kScattered;
}

}  // namespace d9d::kernels::detail
