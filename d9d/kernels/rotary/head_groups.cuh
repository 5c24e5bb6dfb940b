// The division of heads among threads for kernels that rotate: a group of threads, at most a warp, processes several
// heads of a token, so that it reads the token's tables once for all of them. A thread has the same slot
// (rotary/channels.cuh) of each head.
#pragma once

#include <algorithm>

#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/packed.cuh"
#include "d9d/kernels/rotary/channels.cuh"
#include "d9d/kernels/rotary/heads_view.h"

namespace d9d::kernels::detail {

// Divides numbers below 2^31 by a number that is known on the host, by a multiplication and a shift.
struct Divisor {
  unsigned number = 1;
  unsigned factor = 1U << 31;
  unsigned shift = 31;

  [[nodiscard]] static Divisor of(unsigned number) {
    unsigned bits = 0;
    while ((std::uint64_t{1} << bits) < number) ++bits;
    const std::uint64_t power = std::uint64_t{1} << (31 + bits);
    return {.number = number, .factor = static_cast<unsigned>((power + number - 1) / number), .shift = 31 + bits};
  }
  __device__ __forceinline__ unsigned quotient(unsigned dividend) const {
    return static_cast<unsigned>((static_cast<std::uint64_t>(dividend) * factor) >> shift);
  }
};

// The grid of a kernel: the first blocks process queries, the others keys. Arrays have an entry for each of the two.
struct HeadGrid {
  unsigned num_blocks[2] = {};
  unsigned num_groups[2] = {};  // groups of heads in all tokens, below 2^31
  Divisor groups_of_token[2];
  Divisor num_positions;
  int group = 0;      // threads of a group: a power of two, at most a warp
  int num_slots = 0;  // at most `group`

  [[nodiscard]] unsigned size() const { return num_blocks[0] + num_blocks[1]; }
};

// The grid for groups of kHeads heads. num_blocks is left to the caller.
template <int kHeads>
[[nodiscard]] inline HeadGrid head_grid(const HeadsShape& shape, int width) {
  HeadGrid grid;
  grid.num_positions = Divisor::of(static_cast<unsigned>(shape.num_positions));
  grid.num_slots = static_cast<int>(num_slots(shape.head_dim, shape.rotary_dim, width));
  for (grid.group = 1; grid.group < grid.num_slots;) grid.group *= 2;
  for (int i = 0; i < 2; ++i) {
    grid.groups_of_token[i] =
        Divisor::of(std::max(1U, static_cast<unsigned>(shape.num_heads[i] + kHeads - 1) / kHeads));
    grid.num_groups[i] =
        shape.num_heads[i] == 0 ? 0 : static_cast<unsigned>(shape.num_tokens) * grid.groups_of_token[i].number;
  }
  return grid;
}

// Some heads of one token.
struct HeadGroup {
  unsigned token;
  int head;  // the first head
};
template <int kHeads>
__device__ __forceinline__ HeadGroup head_group(const Divisor& groups_of_token, unsigned index) {
  const unsigned token = groups_of_token.quotient(index);
  return {.token = token, .head = static_cast<int>(index - token * groups_of_token.number) * kHeads};
}

// The entry for queries or for keys. A branch selects it, because an array indexed at run time would be put into local
// memory.
template <class T>
__device__ __forceinline__ T pick(const T (&of_both)[2], bool is_second) {
  return is_second ? of_both[1] : of_both[0];
}

// The address of the first head of a group.
__device__ __forceinline__ const unsigned char* head_at(const HeadsShape& shape, const HeadGrid& grid,
                                                        const HeadsView& heads, const HeadGroup& group) {
  const unsigned char* const head = static_cast<const unsigned char*>(heads.data) +
                                    static_cast<std::uint64_t>(group.token) * heads.position_bytes +
                                    static_cast<std::uint64_t>(group.head) * heads.head_bytes;
  if (shape.num_positions == shape.num_tokens) return head;
  return head + grid.num_positions.quotient(group.token) *
                    (heads.batch_bytes - shape.num_positions * static_cast<std::int64_t>(heads.position_bytes));
}

// The index of the first element of the token's row in a table.
__device__ __forceinline__ std::uint64_t table_row_of(const HeadsShape& shape, const HeadGrid& grid, unsigned token) {
  if (shape.num_table_rows != shape.num_tokens) token -= grid.num_positions.quotient(token) * grid.num_positions.number;
  return static_cast<std::uint64_t>(token) * static_cast<unsigned>(shape.rotary_dim);
}

// The entries of a table for both vectors of a slot. They are loaded without a branch, so that no load waits for an
// earlier one. A slot that is not rotated loads those of the first channels, which fill_unless() then replaces.
template <class Table, int W>
struct TablePieces {
  Packed<Table, W> piece[2];
  __device__ __forceinline__ float operator[](int i) const { return piece[i / W][i % W]; }
};
template <class Table, int W>
__device__ __forceinline__ TablePieces<Table, W> load_table(const void* table, std::uint64_t row,
                                                            const Channels& channels, bool is_rotated) {
  const Table* const begin = static_cast<const Table*>(table) + row;
  return {.piece = {load_packed_from_global<Table, W>(begin + (is_rotated ? channels.first : 0)),
                    load_packed_from_global<Table, W>(begin + (is_rotated ? channels.second : 0))}};
}
template <class Table, int W>
__device__ __forceinline__ void fill_unless(bool is_rotated, TablePieces<Table, W>& table, float passing) {
  float values[W];
#pragma unroll
  for (int j = 0; j < W; ++j) values[j] = passing;
  const auto packed = pack<Table>(values);
#pragma unroll
  for (int i = 0; i < packed.kWords; ++i) {
    if (!is_rotated) table.piece[0].word[i] = table.piece[1].word[i] = packed.word[i];
  }
}

// The entries of both tables in a token's row for the channels of a slot; channels that pass through get 1 and 0.
template <class Table, int W>
__device__ __forceinline__ void load_tables(const HeadsShape& shape, const void* cos_table, const void* sin_table,
                                            std::uint64_t row, const Channels& channels, TablePieces<Table, W>& cos,
                                            TablePieces<Table, W>& sin) {
  const bool is_rotated = channels.first < shape.rotary_dim;
  cos = load_table<Table, W>(cos_table, row, channels, is_rotated);
  sin = load_table<Table, W>(sin_table, row, channels, is_rotated);
  if (shape.rotary_dim != shape.head_dim) {
    fill_unless(is_rotated, cos, 1.0F);
    fill_unless(is_rotated, sin, 0.0F);
  }
}

// Calls `function.operator()<T, Table, kIsInterleaved>()`. Tables have the heads' dtype or float; heads must not be
// double.
template <class Function>
void with_head_types(Dtype dtype, Dtype table_dtype, bool is_interleaved, const Function& function) {
  const auto with_style = [&]<class T, class Table>() {
    is_interleaved ? function.template operator()<T, Table, true>() : function.template operator()<T, Table, false>();
  };
  const auto with_table = [&]<class T>() {
    table_dtype == dtype ? with_style.template operator()<T, T>() : with_style.template operator()<T, float>();
  };
  switch (dtype) {
    case Dtype::kFloat32:
      return with_style.template operator()<float, float>();
    case Dtype::kBFloat16:
      return with_table.template operator()<__nv_bfloat16>();
    case Dtype::kFloat16:
      return with_table.template operator()<__half>();
    case Dtype::kFloat64:
      D9D_ASSERT(false, "no kernel for double");
  }
}

}  // namespace d9d::kernels::detail
