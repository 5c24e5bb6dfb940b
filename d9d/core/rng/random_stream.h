// Identifies a sequence of random numbers, and maps the elements of a tensor to positions in it. Uses no torch headers.
#pragma once

#include <cstdint>

namespace d9d {

struct RandomStream {
  std::uint64_t key = 0;   // philox_key(...)
  std::uint64_t step = 0;  // optimiser step; 0 if there is none
};

// Maps a flat part of a tensor to the row-major flattening of the whole tensor. Position 0 of a sequence of rows is
// element `start` of the whole, rows begin `row_pitch` elements apart, and the part consists of the positions from
// `begin` on. The default is the whole tensor.
//
// Example   columns 4 to 7 of [3, 8], without the first two elements: {.begin = 2, .start = 4, .row_size = 4,
//           .row_pitch = 8} has elements 6, 7, 12, 13, 14, 15, 20, ...
struct ElementRows {
  std::int64_t begin = 0;
  std::int64_t start = 0;
  std::int64_t row_size = 1;
  std::int64_t row_pitch = 1;
  bool operator==(const ElementRows&) const = default;

  [[nodiscard]] constexpr bool is_one_row() const { return row_size == row_pitch; }
  // The index in the whole tensor of the part's element `i`.
  [[nodiscard]] constexpr std::int64_t operator[](std::int64_t i) const {
    const std::int64_t position = begin + i;
    if (is_one_row()) return start + position;
    return start + position / row_size * row_pitch + position % row_size;
  }
};

}  // namespace d9d
