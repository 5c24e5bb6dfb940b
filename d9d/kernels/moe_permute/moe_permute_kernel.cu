// Formula: rows[slot_to_row[t, k]] = tokens[t]; back: tokens[t] = sum_k weights[t, k] * rows[slot_to_row[t, k]], with
//          grad_rows = weights * grad_tokens and grad_weights[t, k] = sum_f grad_tokens * rows.
// Legend:  t token, k its choice of an expert, slot = (t, k), f feature; a slot without a row counts as zero.
// Mapping: scatter: a warp copies a part of a token through shared memory by TMA, or a thread one element of unaligned
//          rows; combine: a thread sums 16 bytes of a token, or one element; combine's backward: one block per token.
// Numerics: scatter copies; sums are fp32 (fp64 for fp64 rows) over k in order, rounded once.
// Traffic: each token is read or written once, each row once.
#include <algorithm>

#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/reduce.cuh"
#include "d9d/kernels/device/tma.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/moe_permute/moe_permute_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;
constexpr int kWarpsOfBlock = kBlock / kWarpSize;
constexpr std::int64_t kPartBytes = 8192;
constexpr int kRowsInFlight = 8;  // rows of a token that are loaded before the first is summed

// The type that holds a piece between its load and its use. As separate elements, half-precision values would take a
// register each.
template <class P>
using Bits = std::conditional_t<sizeof(P) == 16, uint4, P>;

// Loads a value of 2, 4 or 8 bytes into a register; store_value() stores it. So other loads can be issued in between.
__device__ __forceinline__ std::uint64_t load_value(const void* from, std::int64_t index, int size) {
  switch (size) {
    case 2:
      return static_cast<const std::uint16_t*>(from)[index];
    case 4:
      return static_cast<const std::uint32_t*>(from)[index];
    default:
      return static_cast<const std::uint64_t*>(from)[index];
  }
}

__device__ __forceinline__ void store_value(std::uint64_t value, void* to, std::int64_t index, int size) {
  switch (size) {
    case 2:
      static_cast<std::uint16_t*>(to)[index] = static_cast<std::uint16_t>(value);
      return;
    case 4:
      static_cast<std::uint32_t*>(to)[index] = static_cast<std::uint32_t>(value);
      return;
    default:
      static_cast<std::uint64_t*>(to)[index] = value;
  }
}

// The work of a thread: one piece of one token.
struct TokenPiece {
  std::int64_t token;
  std::int64_t piece;  // of the row
};

__device__ __forceinline__ TokenPiece token_piece(std::int64_t index, std::int64_t pieces_of_row) {
  if (index <= UINT32_MAX) {  // a 32-bit division costs a fifth of a 64-bit one
    const auto token = static_cast<std::uint32_t>(index) / static_cast<std::uint32_t>(pieces_of_row);
    return {.token = token, .piece = index - token * pieces_of_row};
  }
  return {.token = index / pieces_of_row, .piece = index % pieces_of_row};
}

__device__ __forceinline__ TokenPiece token_piece(std::int64_t pieces_of_row) {
  return token_piece(static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x, pieces_of_row);
}

// Copies the values that accompany rows, for the choices `first`, `first + stride`, ... of a token.
__device__ __forceinline__ void scatter_values(const ScatterTokensArgs& args, std::int64_t token, std::int64_t first,
                                               std::int64_t stride) {
  if (args.value_size == 0) return;
  const std::int64_t first_slot = token * args.shape.num_choices;
  for (std::int64_t choice = first; choice < args.shape.num_choices; choice += stride) {
    const std::int64_t row = args.shape.slot_to_row[first_slot + choice];
    if (row < 0) continue;
    store_value(load_value(args.slot_values, first_slot + choice, args.value_size), args.row_values, row,
                args.value_size);
  }
}

template <class P>
__global__ void __launch_bounds__(kBlock) scatter_tokens(const ScatterTokensArgs args, std::int64_t pieces_of_row) {
  pdl_wait_and_trigger();
  const auto [token, piece] = token_piece(pieces_of_row);
  if (token >= args.shape.num_tokens) return;
  const P value = static_cast<const P*>(args.tokens)[token * pieces_of_row + piece];
  scatter_values(args, token, piece, pieces_of_row);
  const std::int64_t first_slot = token * args.shape.num_choices;
#pragma unroll 8
  for (std::int64_t choice = 0; choice < args.shape.num_choices; ++choice) {
    const std::int64_t row = args.shape.slot_to_row[first_slot + choice];
    if (row >= 0) static_cast<P*>(args.rows)[row * pieces_of_row + piece] = value;
  }
}

constexpr int kWarpsOfScatter = 8;

// A warp copies a part of a token: the TMA reads it once and writes it for every choice. Sizes are in bytes, multiples
// of 16; each warp has `part_bytes` of shared memory.
__global__ void __launch_bounds__(kWarpsOfScatter* kWarpSize)
    scatter_tokens_in_bulk(const ScatterTokensArgs args, std::int64_t row_bytes, unsigned parts_of_row,
                           unsigned part_bytes) {
  pdl_wait_and_trigger();
  extern __shared__ __align__(128) unsigned char parts[];
  __shared__ Mbarrier full_of_warps[kWarpsOfScatter];
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned lane = threadIdx.x % kWarpSize;
  const auto [token, part_of_row] =
      token_piece(static_cast<std::int64_t>(blockIdx.x) * kWarpsOfScatter + warp, parts_of_row);
  if (token >= args.shape.num_tokens) return;
  const std::int64_t begin = part_of_row * part_bytes;
  const auto bytes = static_cast<std::uint32_t>(min(std::int64_t{part_bytes}, row_bytes - begin));
  unsigned char* const part = parts + warp * part_bytes;
  Mbarrier& full = full_of_warps[warp];
  if (lane == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(full, bytes);
    tma_load_1d(part, static_cast<const unsigned char*>(args.tokens) + token * row_bytes + begin, bytes, full);
  }
  const bool has_values = begin == 0 && args.value_size > 0;
  const auto row_of = [&](std::int64_t choice) {
    return choice < args.shape.num_choices ? args.shape.slot_to_row[token * args.shape.num_choices + choice] : -1;
  };
  const auto value_of = [&](std::int64_t choice) {
    return has_values && choice < args.shape.num_choices
               ? load_value(args.slot_values, token * args.shape.num_choices + choice, args.value_size)
               : 0;
  };
  std::int64_t row = row_of(lane);
  std::uint64_t value = value_of(lane);
  __syncwarp();
  mbarrier_wait_parity(full, 0);
  for (std::int64_t choice = lane; choice < args.shape.num_choices; choice += kWarpSize) {
    if (row >= 0) {
      tma_store_1d_evict_first(static_cast<unsigned char*>(args.rows) + row * row_bytes + begin, part, bytes);
      if (has_values) store_value(value, args.row_values, row, args.value_size);
    }
    row = row_of(choice + kWarpSize);
    value = value_of(choice + kWarpSize);
  }
  tma_store_commit();
  tma_store_wait_read<0>();
}

// The value of a slot's row; 0 for a slot without a row.
__device__ __forceinline__ std::uint64_t value_of_slot(const CombineRowsArgs& args, std::int64_t slot) {
  const std::int64_t row = args.shape.slot_to_row[slot];
  return row >= 0 ? load_value(args.row_values, row, args.value_size) : 0;
}

// The least number of blocks per multiprocessor. It caps registers, so that enough threads have loads in flight.
template <bool kWeighs>
constexpr int kBlocksOfCombine = kWeighs ? 3 : 4;

template <class T, int kCount, bool kWeighs>
__global__ void __launch_bounds__(kBlock, kBlocksOfCombine<kWeighs>)
    combine_rows(const CombineRowsArgs args, std::int64_t pieces_of_row) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  using P = Vec<T, kCount>;
  const auto [token, piece] = token_piece(pieces_of_row);
  if (token >= args.shape.num_tokens) return;
  const std::int64_t first_slot = token * args.shape.num_choices;
  const bool has_value = args.value_size > 0 && piece < args.shape.num_choices;
  const auto* const from = static_cast<const unsigned char*>(args.rows) + piece * sizeof(P);
  const std::int64_t row_bytes = pieces_of_row * static_cast<std::int64_t>(sizeof(P));
  std::uint64_t slot_value = 0;
  A sum[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) sum[j] = 0;
  for (std::int64_t first = 0; first < args.shape.num_choices; first += kRowsInFlight) {
    std::int64_t row[kRowsInFlight];
    A weight[kRowsInFlight];
    Bits<P> bits[kRowsInFlight];
    unsigned are_there = 0;  // one bit per row takes fewer registers than keeping the row numbers
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      const bool is_choice = first + i < args.shape.num_choices;
      row[i] = is_choice ? args.shape.slot_to_row[first_slot + first + i] : -1;
      if constexpr (kWeighs)
        weight[i] = is_choice ? static_cast<const A*>(args.slot_weights)[first_slot + first + i] : A{0};
    }
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      bits[i] = {};
      if (row[i] < 0) continue;
      are_there |= 1U << i;
      bits[i] = *reinterpret_cast<const Bits<P>*>(from + row[i] * row_bytes);
    }
    if (has_value && first == 0) slot_value = value_of_slot(args, first_slot + piece);  // in flight with the rows
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      if ((are_there >> i & 1) == 0) continue;
      P value;
      memcpy(&value, bits + i, sizeof(P));
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum[j] += kWeighs ? weight[i] * widen(value.value[j]) : widen(value.value[j]);
    }
  }
  P result;
#pragma unroll
  for (int j = 0; j < kCount; ++j) result.value[j] = narrow<T>(sum[j]);
  static_cast<P*>(args.tokens)[token * pieces_of_row + piece] = result;
  if (!has_value) return;
  store_value(slot_value, args.slot_values, first_slot + piece, args.value_size);
  for (std::int64_t choice = piece + pieces_of_row; choice < args.shape.num_choices; choice += pieces_of_row)
    store_value(value_of_slot(args, first_slot + choice), args.slot_values, first_slot + choice, args.value_size);
}

// One block per token.
template <class T, int kCount>
__global__ void __launch_bounds__(kBlock)
    combine_rows_backward(const CombineRowsBackwardArgs args, std::int64_t pieces_of_row) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  using P = Vec<T, kCount>;
  __shared__ A dots_of_warps[kRowsInFlight][kWarpsOfBlock];
  const std::int64_t token = blockIdx.x;
  const P* const grad_token = static_cast<const P*>(args.grad_tokens) + token * pieces_of_row;
  for (std::int64_t first = 0; first < args.shape.num_choices; first += kRowsInFlight) {
    const std::int64_t first_slot = token * args.shape.num_choices + first;
    std::int64_t row[kRowsInFlight];
    A weight[kRowsInFlight];
    A dot[kRowsInFlight] = {};
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      row[i] = first + i < args.shape.num_choices ? args.shape.slot_to_row[first_slot + i] : -1;
      weight[i] = row[i] >= 0 ? static_cast<const A*>(args.slot_weights)[first_slot + i] : A{0};
    }
    for (std::int64_t piece = threadIdx.x; piece < pieces_of_row; piece += kBlock) {
      const P grad = grad_token[piece];
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        if (row[i] < 0) continue;
        if (args.grad_weights) {
          const P value = static_cast<const P*>(args.rows)[row[i] * pieces_of_row + piece];
#pragma unroll
          for (int j = 0; j < kCount; ++j) dot[i] += widen(grad.value[j]) * widen(value.value[j]);
        }
        if (args.grad_rows) {
          P grad_row;
#pragma unroll
          for (int j = 0; j < kCount; ++j) grad_row.value[j] = narrow<T>(weight[i] * widen(grad.value[j]));
          static_cast<P*>(args.grad_rows)[row[i] * pieces_of_row + piece] = grad_row;
        }
      }
    }
    if (!args.grad_weights) continue;
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      const A of_warp = warp_sum(dot[i]);
      if (threadIdx.x % kWarpSize == 0) dots_of_warps[i][threadIdx.x / kWarpSize] = of_warp;
    }
    __syncthreads();
    if (threadIdx.x < kRowsInFlight && first + threadIdx.x < args.shape.num_choices) {
      A sum = 0;
      for (int warp = 0; warp < kWarpsOfBlock; ++warp) sum += dots_of_warps[threadIdx.x][warp];
      static_cast<A*>(args.grad_weights)[first_slot + threadIdx.x] = sum;
    }
    __syncthreads();
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock) indices_to_multihot(const MultihotArgs args) {
  pdl_wait_and_trigger();
  const auto [token, expert] = token_piece(args.num_experts);
  if (token >= args.num_tokens) return;
  bool is_chosen = false;
  T prob = narrow<T>(0);
  for (std::int64_t slot = token * args.num_choices; slot < (token + 1) * args.num_choices; ++slot) {
    if (args.indices[slot] != expert) continue;
    is_chosen = true;
    prob = static_cast<const T*>(args.probs)[slot];
  }
  args.mask[token * args.num_experts + expert] = is_chosen;
  static_cast<T*>(args.dense)[token * args.num_experts + expert] = prob;
}

// Calls function(Element<T>, integral_constant of the elements of a piece): 16 bytes, or one element of unaligned rows.
template <class Function>
void with_piece(const MoePermuteShape& shape, std::initializer_list<const void*> rows, const Function& function) {
  with_element_type(shape.dtype, [&]<class T>(Element<T> element) {
    bool has_pieces = shape.num_features % kWidth<T> == 0;
    for (const void* data : rows) has_pieces = has_pieces && is_aligned(data);
    if (has_pieces) return function(element, std::integral_constant<int, kWidth<T>>());
    return function(element, std::integral_constant<int, 1>());
  });
}

}  // namespace

void d9d_launch_scatter_tokens(const ScatterTokensArgs& args, CUstream_st* stream) {
  const MoePermuteShape& shape = args.shape;
  if (shape.num_tokens == 0) return;
  with_piece(shape, {args.tokens, args.rows},
             [&]<class T, int kCount>(Element<T>, std::integral_constant<int, kCount>) {
               if constexpr (kCount > 1) {
                 const std::int64_t row_bytes = shape.num_features * static_cast<std::int64_t>(sizeof(T));
                 const unsigned parts_of_row = num_blocks(row_bytes, kPartBytes);
                 const auto part_bytes = static_cast<unsigned>(std::min(kPartBytes, row_bytes));
                 launch_pdl(scatter_tokens_in_bulk,
                            {.num_blocks = num_blocks(shape.num_tokens * parts_of_row, kWarpsOfScatter),
                             .block = kWarpsOfScatter * kWarpSize,
                             .shared_bytes = kWarpsOfScatter * part_bytes},
                            stream, args, row_bytes, parts_of_row, part_bytes);
               } else {
                 const unsigned grid = num_blocks(shape.num_tokens * shape.num_features, kBlock);
                 launch_pdl(scatter_tokens<T>, {grid, kBlock}, stream, args, shape.num_features);
               }
             });
  check_launch("permute");
}

void d9d_launch_combine_rows(const CombineRowsArgs& args, CUstream_st* stream) {
  const MoePermuteShape& shape = args.shape;
  if (shape.num_tokens == 0) return;
  with_piece(
      shape, {args.tokens, args.rows}, [&]<class T, int kCount>(Element<T>, std::integral_constant<int, kCount>) {
        const std::int64_t pieces = shape.num_features / kCount;
        const auto launch = [&](auto kernel) {
          launch_pdl(kernel, {num_blocks(shape.num_tokens * pieces, kBlock), kBlock}, stream, args, pieces);
        };
        args.slot_weights == nullptr ? launch(combine_rows<T, kCount, false>) : launch(combine_rows<T, kCount, true>);
      });
  check_launch("combine_rows");
}

void d9d_launch_combine_rows_backward(const CombineRowsBackwardArgs& args, CUstream_st* stream) {
  const MoePermuteShape& shape = args.shape;
  if (shape.num_tokens == 0) return;
  with_piece(shape, {args.rows, args.grad_tokens, args.grad_rows},
             [&]<class T, int kCount>(Element<T>, std::integral_constant<int, kCount>) {
               launch_pdl(combine_rows_backward<T, kCount>, {num_blocks(shape.num_tokens, 1), kBlock}, stream, args,
                          shape.num_features / kCount);
             });
  check_launch("unpermute");
}

void d9d_launch_indices_to_multihot(const MultihotArgs& args, CUstream_st* stream) {
  const std::int64_t size = args.num_tokens * args.num_experts;
  if (size == 0) return;
  with_element_type(args.dtype, [&]<class T>(Element<T>) {
    launch_pdl(indices_to_multihot<T>, {num_blocks(size, kBlock), kBlock}, stream, args);
  });
  check_launch("indices_to_multihot");
}

}  // namespace d9d::kernels::detail
