// How the threads of norm_rotary share heads: a group of threads, at most a warp, for some heads of a token, so that
// the tables of the token are read once for them. A thread holds one slot (rotary/channels.cuh) of each.
#pragma once

#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/packed.cuh"
#include "d9d/kernels/norm_rotary/norm_rotary_kernel.h"
#include "d9d/kernels/rotary/channels.cuh"
#include "d9d/kernels/rotary/slots.h"

namespace d9d::kernels::detail {

// What blocks of one kernel work on: the first ones on queries, the others on keys.
struct HeadGrid {
  unsigned num_blocks[2] = {};
  unsigned num_groups[2] = {};  // of heads, in all tokens
  int group = 0;                // threads: a power of two, at most a warp
  int num_slots = 0;            // at most `group`

  [[nodiscard]] unsigned size() const { return num_blocks[0] + num_blocks[1]; }
};

// Without blocks, for groups of kHeads heads.
template <int kHeads>
[[nodiscard]] inline HeadGrid head_grid(const NormRotaryInputs& inputs, int width) {
  HeadGrid grid;
  grid.num_slots = static_cast<int>(num_slots(inputs.head_dim, inputs.rotary_dim, width));
  for (grid.group = 1; grid.group < grid.num_slots;) grid.group *= 2;
  for (int i = 0; i < 2; ++i)
    grid.num_groups[i] = static_cast<unsigned>(inputs.num_tokens * ((inputs.num_heads[i] + kHeads - 1) / kHeads));
  return grid;
}

// Heads of one token.
struct HeadGroup {
  unsigned token;
  unsigned batch;
  unsigned position;
  int head;  // the first
};
template <int kHeads>
__device__ __forceinline__ HeadGroup head_group(const NormRotaryInputs& inputs, int num_heads, unsigned index) {
  const auto groups_of_token = static_cast<unsigned>(num_heads + kHeads - 1) / kHeads;
  const unsigned token = index / groups_of_token;
  const unsigned batch =
      inputs.num_positions == inputs.num_tokens ? 0 : token / static_cast<unsigned>(inputs.num_positions);
  return {.token = token,
          .batch = batch,
          .position = token - batch * static_cast<unsigned>(inputs.num_positions),
          .head = static_cast<int>(index - token * groups_of_token) * kHeads};
}

// The first channel of the token's first head.
template <class T>
__device__ __forceinline__ const T* heads_of(const HeadsView& heads, const HeadGroup& group) {
  return static_cast<const T*>(heads.data) + group.batch * heads.batch_stride +
         static_cast<std::uint64_t>(group.position) * heads.position_stride;
}

// Both pieces of a table's row; channels that do not turn get `passing`. Reads without a branch, so that nothing waits
// for what was read before.
template <class Table, int W>
struct TablePieces {
  Packed<Table, W> piece[2];
  __device__ __forceinline__ float operator[](int i) const { return piece[i / W][i % W]; }
};
template <class Table, int W>
__device__ __forceinline__ TablePieces<Table, W> load_table(const void* table, std::uint64_t row,
                                                            const Channels& channels, bool is_turning) {
  const Table* const begin = static_cast<const Table*>(table) + row;
  return {.piece = {load_packed<Table, W>(begin + (is_turning ? channels.first : 0)),
                    load_packed<Table, W>(begin + (is_turning ? channels.second : 0))}};
}
template <class Table, int W>
__device__ __forceinline__ void fill_unless(bool is_turning, TablePieces<Table, W>& table, float passing) {
  float values[W];
#pragma unroll
  for (int j = 0; j < W; ++j) values[j] = passing;
  const auto packed = pack<Table>(values);
#pragma unroll
  for (int i = 0; i < packed.kWords; ++i) {
    if (!is_turning) table.piece[0].word[i] = table.piece[1].word[i] = packed.word[i];
  }
}

// The factors of a slot; 0 where it has no second piece.
template <class T, int W>
__device__ __forceinline__ void load_factors(const NormRotaryInputs& inputs, const void* weight,
                                             const Channels& channels, float (&factors)[2 * W]) {
  const float base = inputs.zero_centered ? 1.0F : 0.0F;
  const auto load = [&]<class Weight>(Element<Weight>) {
    const auto first = load_packed<Weight, W>(static_cast<const Weight*>(weight) + channels.first);
    const auto second = load_packed<Weight, W>(static_cast<const Weight*>(weight) +
                                               (channels.second < 0 ? channels.first : channels.second));
#pragma unroll
    for (int j = 0; j < W; ++j) {
      factors[j] = base + first[j];
      factors[W + j] = channels.second < 0 ? 0.0F : base + second[j];
    }
  };
  if (sizeof(T) == 2 && inputs.weight_dtype == Dtype::kFloat32) {
    load(Element<float>());
  } else {
    load(Element<T>());
  }
}

// Sums over the threads of a group, on every thread of it; all threads of the warp call it.
template <int kValues>
__device__ __forceinline__ void sum_over_group(float (&values)[kValues], int group) {
  for (int offset = group / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] += __shfl_xor_sync(kFullWarp, values[i], offset);
  }
}

// Calls `function.operator()<T, Table, kIsInterleaved>()`.
template <class Function>
void with_norm_rotary_types(const NormRotaryInputs& inputs, const Function& function) {
  const auto with_style = [&]<class T, class Table>() {
    inputs.is_interleaved ? function.template operator()<T, Table, true>()
                          : function.template operator()<T, Table, false>();
  };
  const auto with_table = [&]<class T>() {
    inputs.table_dtype == inputs.dtype ? with_style.template operator()<T, T>()
                                       : with_style.template operator()<T, float>();
  };
  switch (inputs.dtype) {
    case Dtype::kFloat32:
      return with_style.template operator()<float, float>();
    case Dtype::kBFloat16:
      return with_table.template operator()<__nv_bfloat16>();
    case Dtype::kFloat16:
      return with_table.template operator()<__half>();
    case Dtype::kFloat64:
      D9D_ASSERT(false, "no norm_rotary kernel for double");
  }
}

}  // namespace d9d::kernels::detail
