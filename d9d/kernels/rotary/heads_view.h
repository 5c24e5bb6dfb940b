// How queries and keys are passed to the kernels that rotate them.
#pragma once

#include <cstdint>

namespace d9d::kernels::detail {

// Legend   B = batch, S = num_positions, D = head_dim, Dr = rotary_dim (even, <= D), T = their dtype,
//          W = elements of T in 16 bytes. Addresses and strides are aligned to 16 bytes; D is a multiple of W, Dr of
//          2W, and a head has at most as many slots as a warp has threads.
struct HeadsView {  // [B, S, heads, D] of T with contiguous channels
  const void* data = nullptr;
  std::int64_t batch_bytes = 0;  // strides, in bytes
  std::uint32_t position_bytes = 0;
  std::uint32_t head_bytes = 0;
};

struct HeadsShape {
  std::int64_t num_tokens = 0;      // B * S; the number of all heads of all tokens is below 2^31
  std::int64_t num_positions = 0;   // S, or B * S after join_batches()
  std::int64_t num_table_rows = 0;  // B * S or S; the tables are [num_table_rows, Dr]
  int head_dim = 0;
  int rotary_dim = 0;
  int num_heads[2] = {};  // of queries and of keys; 0 if there is no such tensor
};

// The number of slots of a head. A slot is the work of one thread: two vectors of `width` channels that it rotates with
// each other, or up to two that it passes through. The slots of rotated vectors come first.
[[nodiscard]] inline std::int64_t num_slots(std::int64_t head_dim, std::int64_t rotary_dim, std::int64_t width) {
  const std::int64_t num_passing = (head_dim - rotary_dim + width - 1) / width;
  return rotary_dim / 2 / width + (num_passing + 1) / 2;
}

}  // namespace d9d::kernels::detail
