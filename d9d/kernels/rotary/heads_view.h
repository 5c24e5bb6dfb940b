// Queries and keys as kernels that rotate them see them.
#pragma once

#include <cstdint>

namespace d9d::kernels::detail {

// Legend   B = batch, S = num_positions, D = head_dim, Dr = rotary_dim (even, <= D), T = their dtype,
//          W = elements of T in 16 bytes. Addresses and strides are aligned to 16 bytes; D is a multiple of W, Dr of
//          2W, and a warp has a thread for each slot of a head.
struct HeadsView {  // [B, S, heads, D] of T, whose channels lie side by side
  const void* data = nullptr;
  std::int64_t batch_bytes = 0;  // from one to the next
  std::uint32_t position_bytes = 0;
  std::uint32_t head_bytes = 0;
};

struct HeadsShape {
  std::int64_t num_tokens = 0;      // B * S; times heads below 2^31
  std::int64_t num_positions = 0;   // S, or B * S where all strides and tables allow that
  std::int64_t num_table_rows = 0;  // B * S or S, of tables [num_table_rows, Dr]
  int head_dim = 0;
  int rotary_dim = 0;
  int num_heads[2] = {};  // of queries and of keys; 0: nothing to do
};

// Slots of a head: a thread rotates two vectors of `width` channels with each other, or passes two through. The slots
// of pairs that are rotated come first.
[[nodiscard]] inline std::int64_t num_slots(std::int64_t head_dim, std::int64_t rotary_dim, std::int64_t width) {
  const std::int64_t num_passing = (head_dim - rotary_dim + width - 1) / width;
  return rotary_dim / 2 / width + (num_passing + 1) / 2;
}

}  // namespace d9d::kernels::detail
