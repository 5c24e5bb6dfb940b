#include <algorithm>
#include <limits>

#include "d9d/kernels/device/block_reduce.cuh"
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 512;
constexpr int kGroup = 8;  // columns of a thread side by side: 16 bytes of half precision
constexpr std::int64_t kTile = kBlock * kGroup;
constexpr int kBlocksOfScale = 132 * 8;

template <class A>
constexpr A kInfinity = std::numeric_limits<A>::infinity();
template <class A>
constexpr A kLowest = std::numeric_limits<A>::lowest();

// The logits of columns [column, column + kGroup) with bias and soft cap; -inf beyond the last column.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ void load_logits(const LogitBlock& block, std::int64_t row, std::int64_t column,
                                            A (&z)[kGroup]) {
  const A* from = static_cast<const A*>(block.logits) + row * block.row_stride + column;
#pragma unroll
  for (int i = 0; i < kGroup / kWidth<A>; ++i) {
    const Vector<A> vector = reinterpret_cast<const Vector<A>*>(from)[i];
#pragma unroll
    for (int j = 0; j < kWidth<A>; ++j) z[i * kWidth<A> + j] = vector.value[j];
  }
  const T* bias = static_cast<const T*>(block.bias);
  const A softcap = static_cast<A>(block.softcap);
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    const bool is_inside = column + j < block.num_columns;
    if (bias && is_inside) z[j] += widen(bias[column + j]);
    if (softcap > 0) z[j] = softcap * tanh(z[j] / softcap);
    if (!is_inside) z[j] = -kInfinity<A>;
  }
}

template <class T>
using Group = Elements<T, kGroup>;

// Numbers of [0, 1] with 12 significant bits: the exponents 2^-31 to 2^0 of a float in 5 bits, 11 bits of its mantissa.
constexpr std::uint32_t kLeastExponent = (127U - 31U) << 11;
constexpr int kDroppedBits = 12;

__device__ __forceinline__ std::uint16_t pack(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t rounded = (bits + 0x7ffU + ((bits >> kDroppedBits) & 1U)) >> kDroppedBits;  // to nearest even
  return rounded < kLeastExponent ? 0 : static_cast<std::uint16_t>(rounded - kLeastExponent);
}

__device__ __forceinline__ float unpack(std::uint16_t packed) {
  return packed == 0 ? 0.0F : __uint_as_float((packed + kLeastExponent) << kDroppedBits);
}

constexpr int kBlockOfStatistics = 256;
constexpr std::int64_t kTileOfStatistics = kBlockOfStatistics * kGroup;

// Half precision hides the error of the fast instruction.
template <class T>
__device__ __forceinline__ Accumulator<T> fast_exp(Accumulator<T> x) {
  if constexpr (sizeof(T) == 2) {
    return __expf(x);
  } else {
    return exp(x);
  }
}

// A block of threads a row, which holds kTiles tiles of it; of wider blocks of logits the rest is read again.
template <class T, int kTiles>
__global__ void __launch_bounds__(kBlockOfStatistics) logit_statistics(const LogitStatisticsArgs args) {
  wait_for_kernel_before();
  using A = Accumulator<T>;
  __shared__ A scratch[kWarpSize];
  const LogitBlock& block = args.block;
  const std::int64_t row = blockIdx.x;
  const std::int64_t target = block.targets[row];
  if (target == kIgnored) return;
  const std::int64_t first = threadIdx.x * kGroup;

  A held[kTiles][kGroup];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const std::int64_t column = first + tile * kTileOfStatistics;
    if (column < block.num_columns) load_logits<T>(block, row, column, held[tile]);
  }
  A greatest = -kInfinity<A>;
  const auto look = [&](const A(&z)[kGroup]) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) greatest = max(greatest, z[j]);
  };
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
    if (first + tile * kTileOfStatistics < block.num_columns) look(held[tile]);
  for (std::int64_t column = first + kTiles * kTileOfStatistics; column < block.num_columns;
       column += kTileOfStatistics) {
    A z[kGroup];
    load_logits<T>(block, row, column, z);
    look(z);
  }
  greatest = block_reduce(greatest, -kInfinity<A>, scratch, [](A a, A b) { return max(a, b); });

  const A offset = max(greatest, kLowest<A>);  // a block of -inf sums to 0, not NaN
  A sum = 0;
  const auto add = [&](const A(&z)[kGroup], std::int64_t column) {
    Group<std::uint16_t> packed;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const A exponential = fast_exp<T>(z[j] - offset);
      sum += exponential;
      packed.value[j] = pack(static_cast<float>(exponential));
    }
    if (args.packed) *reinterpret_cast<Group<std::uint16_t>*>(args.packed + row * args.packed_stride + column) = packed;
  };
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
    if (const std::int64_t column = first + tile * kTileOfStatistics; column < block.num_columns)
      add(held[tile], column);
  for (std::int64_t column = first + kTiles * kTileOfStatistics; column < block.num_columns;
       column += kTileOfStatistics) {
    A z[kGroup];
    load_logits<T>(block, row, column, z);
    add(z, column);
  }
  sum = block_sum(sum, scratch);

  const std::int64_t target_column = target - block.first_column;
  if (threadIdx.x == kWarpSize && target_column >= 0 && target_column < block.num_columns) {
    A z[kGroup];
    load_logits<T>(block, row, target_column / kGroup * kGroup, z);
#pragma unroll
    for (int j = 0; j < kGroup; ++j)
      if (j == target_column % kGroup) static_cast<A*>(args.target_logit)[row] = z[j];
  }
  if (threadIdx.x != 0) return;
  A* max_so_far = static_cast<A*>(args.max) + row;
  A* sum_so_far = static_cast<A*>(args.sum) + row;
  const A both = max(*max_so_far, offset);
  *sum_so_far = *sum_so_far * exp(*max_so_far - both) + sum * exp(offset - both);
  *max_so_far = both;
  if (args.packed) args.packed_max[row * args.packed_max_stride] = static_cast<float>(offset);
}

template <class A>
__global__ void __launch_bounds__(kBlock) cross_entropy_loss(const CrossEntropyLossArgs args) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (row >= args.num_rows) return;
  A loss = 0;
  A lse = 0;
  if (args.targets[row] != kIgnored) {
    lse = static_cast<const A*>(args.max)[row] + log(static_cast<const A*>(args.sum)[row]);
    loss = lse - static_cast<const A*>(args.target_logit)[row] + static_cast<A>(args.z_loss_weight) * lse * lse;
  }
  static_cast<A*>(args.loss)[row] = loss;
  static_cast<A*>(args.lse)[row] = lse;
}

// d softcap(x) / dx at z = softcap(x).
template <class A>
__device__ __forceinline__ A slope(A z, double softcap) {
  const A share = z / static_cast<A>(softcap);
  return 1 - share * share;
}

template <class A>
__device__ __forceinline__ A row_gradient(const void* grads, std::int64_t stride, std::int64_t row) {
  return grads ? static_cast<const A*>(grads)[row * stride] : A{0};
}

// A block of threads a row. A tile is read by all before any of it is written: gradients are never longer than logits.
template <class T>
__global__ void __launch_bounds__(kBlock) logit_gradient(const LogitGradientArgs args) {
  using A = Accumulator<T>;
  const LogitBlock& block = args.block;
  const std::int64_t row = blockIdx.x;
  const bool is_ignored = block.targets[row] == kIgnored;
  const std::int64_t target_column = block.targets[row] - block.first_column;
  const A lse = static_cast<const A*>(args.lse)[row];
  const A by_target = row_gradient<A>(args.grad_loss, args.grad_loss_stride, row);
  const A by_softmax = by_target * (1 + 2 * static_cast<A>(args.z_loss_weight) * lse) +
                       row_gradient<A>(args.grad_lse, args.grad_lse_stride, row);
  T* grads = reinterpret_cast<T*>(static_cast<A*>(block.logits) + row * block.row_stride);
  for (std::int64_t tile = 0; tile < block.num_columns; tile += kTile) {
    const std::int64_t column = tile + threadIdx.x * kGroup;
    Group<T> grad;
    if (column < block.num_columns) {
      A z[kGroup];
      load_logits<T>(block, row, column, z);
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        A value = by_softmax * exp(z[j] - lse);
        if (column + j == target_column) value -= by_target;
        if (block.softcap > 0) value *= slope(z[j], block.softcap);
        grad.value[j] = is_ignored || column + j >= block.num_columns ? narrow<T>(0) : narrow<T>(value);
      }
    }
    __syncthreads();
    if (column < block.num_columns) *reinterpret_cast<Group<T>*>(grads + column) = grad;
  }
}

// A block of threads a row. The target's own probability comes from its logit: near 1, twelve bits of it would leave
// nothing of 1 - p.
__global__ void __launch_bounds__(kBlock) packed_logit_gradient(const PackedLogitGradientArgs args) {
  const std::int64_t row = blockIdx.x;
  const bool is_ignored = args.targets[row] == kIgnored;
  const std::int64_t target_column = args.targets[row] - args.first_column;
  const float lse = args.lse[row];
  const float target_logit = args.target_logit[row];
  const float by_softmax = 1 + 2 * static_cast<float>(args.z_loss_weight) * lse;
  const auto block_columns = static_cast<unsigned>(args.block_columns);
  std::uint16_t* const packed_row = args.packed + row * args.row_stride;
  for (std::int64_t column = threadIdx.x * kGroup; column < args.num_columns; column += kTile) {
    auto* const group = reinterpret_cast<Group<std::uint16_t>*>(packed_row + column);
    const float max = args.packed_max[row * args.packed_max_stride + static_cast<unsigned>(column) / block_columns];
    const float scale = by_softmax * expf(max - lse);
    const Group<std::uint16_t> packed = *group;
    Group<__nv_bfloat16> grad;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const float exponential = unpack(packed.value[j]);
      const bool is_target = column + j == target_column;
      float value = is_target ? by_softmax * expf(target_logit - lse) - 1 : scale * exponential;
      if (args.softcap > 0 && value != 0)
        value *= slope(is_target ? target_logit : max + logf(exponential), args.softcap);
      grad.value[j] = is_ignored ? __nv_bfloat16(0.0F) : __nv_bfloat16(value);
    }
    *reinterpret_cast<Group<__nv_bfloat16>*>(group) = grad;
  }
}

__global__ void __launch_bounds__(kBlock) scale_values(const ScaleArgs args) {
  const float factor = *args.factor;
  if (factor == 1.0F) return;
  auto* const values = static_cast<__nv_bfloat16*>(args.values);
  const std::int64_t num_groups = args.size / kGroup;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const std::int64_t num_threads = static_cast<std::int64_t>(gridDim.x) * kBlock;
  for (std::int64_t i = thread; i < num_groups; i += num_threads) {
    auto group = reinterpret_cast<Group<__nv_bfloat16>*>(values)[i];
#pragma unroll
    for (int j = 0; j < kGroup; ++j) group.value[j] = narrow<__nv_bfloat16>(widen(group.value[j]) * factor);
    reinterpret_cast<Group<__nv_bfloat16>*>(values)[i] = group;
  }
  if (const std::int64_t i = num_groups * kGroup + thread; i < args.size)
    values[i] = narrow<__nv_bfloat16>(widen(values[i]) * factor);
}

}  // namespace

void launch_logit_statistics(const LogitStatisticsArgs& args, CUstream_st* stream) {
  if (args.block.num_rows == 0 || args.block.num_columns == 0) return;
  with_element_type(args.block.dtype, [&]<class T>(Element<T>) {
    const auto launch = [&]<int kTiles>(std::integral_constant<int, kTiles>) {
      launch_after(logit_statistics<T, kTiles>, {num_blocks(args.block.num_rows, 1), kBlockOfStatistics}, stream, args);
    };
    constexpr bool kIsHalf = sizeof(T) == 2;  // others hold one tile
    switch (num_blocks(args.block.num_columns, kTileOfStatistics)) {
      case 1:
        return launch(std::integral_constant<int, 1>());
      case 2:
        return launch(std::integral_constant < int, kIsHalf ? 2 : 1 > ());
      case 3:
        return launch(std::integral_constant < int, kIsHalf ? 3 : 1 > ());
      default:
        return launch(std::integral_constant < int, kIsHalf ? 4 : 1 > ());
    }
  });
  check_launch("linear_cross_entropy");
}

void launch_cross_entropy_loss(const CrossEntropyLossArgs& args, CUstream_st* stream) {
  if (args.num_rows == 0) return;
  const unsigned grid = num_blocks(args.num_rows, kBlock);
  with_element_type(
      args.dtype, [&]<class T>(Element<T>) { cross_entropy_loss<Accumulator<T>><<<grid, kBlock, 0, stream>>>(args); });
  check_launch("linear_cross_entropy");
}

void launch_logit_gradient(const LogitGradientArgs& args, CUstream_st* stream) {
  if (args.block.num_rows == 0 || args.block.num_columns == 0) return;
  with_element_type(args.block.dtype, [&]<class T>(Element<T>) {
    logit_gradient<T><<<num_blocks(args.block.num_rows, 1), kBlock, 0, stream>>>(args);
  });
  check_launch("linear_cross_entropy");
}

void launch_packed_logit_gradient(const PackedLogitGradientArgs& args, CUstream_st* stream) {
  if (args.num_rows == 0 || args.num_columns == 0) return;
  packed_logit_gradient<<<num_blocks(args.num_rows, 1), kBlock, 0, stream>>>(args);
  check_launch("linear_cross_entropy");
}

void launch_scale(const ScaleArgs& args, CUstream_st* stream) {
  if (args.size == 0) return;
  const unsigned grid = std::min<unsigned>(num_blocks(args.size, kTile), kBlocksOfScale);
  scale_values<<<grid, kBlock, 0, stream>>>(args);
  check_launch("linear_cross_entropy");
}

}  // namespace d9d::kernels::detail
