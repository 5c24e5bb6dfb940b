// How a thread block reads a row of a block of logits.
//
// Example
//   const LogitRow<T, 4> logits(args.block, blockIdx.x);
//   const float greatest = logits.greatest(scratch);
//   logits.for_each([&](const float(&z)[kLogitsOfVec], std::int64_t column) { ... });
#pragma once

#include <algorithm>
#include <limits>

#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/packed.cuh"
#include "d9d/kernels/device/reduce.cuh"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_kernel.h"

namespace d9d::kernels::detail {

constexpr int kLogitsOfVec = 8;  // contiguous columns that a thread processes: 16 bytes of half precision
template <class T>
using LogitVec = Vec<T, kLogitsOfVec>;

template <class A>
constexpr A kInfinity = std::numeric_limits<A>::infinity();
template <class A>
constexpr A kLowest = std::numeric_limits<A>::lowest();

// Loads the logits of columns [column, column + kLogitsOfVec), with kTransforms applies bias and softcap; -inf beyond
// the last column.
template <class T, bool kTransforms = true, class A = Accumulator<T>>
__device__ __forceinline__ void load_logits(const LogitBlock& block, std::int64_t row, std::int64_t column,
                                            A (&z)[kLogitsOfVec]) {
  const A* from = static_cast<const A*>(block.logits) + row * block.row_stride + column;
#pragma unroll
  for (int i = 0; i < kLogitsOfVec / kWidth<A>; ++i) {
    const Vec16<A> vector = reinterpret_cast<const Vec16<A>*>(from)[i];
#pragma unroll
    for (int j = 0; j < kWidth<A>; ++j) z[i * kWidth<A> + j] = vector.value[j];
  }
  const T* bias = static_cast<const T*>(block.bias);
  const A softcap = static_cast<A>(block.softcap);
  if (kTransforms && bias) {
#pragma unroll
    for (int j = 0; j < kLogitsOfVec; ++j)
      if (column + j < block.num_columns) z[j] += widen(bias[column + j]);
  }
  if (kTransforms && softcap > 0) {
#pragma unroll
    for (int j = 0; j < kLogitsOfVec; ++j) z[j] = softcap * tanh(z[j] / softcap);
  }
  if (column + kLogitsOfVec <= block.num_columns) return;
#pragma unroll
  for (int j = 0; j < kLogitsOfVec; ++j)
    if (column + j >= block.num_columns) z[j] = -kInfinity<A>;
}

constexpr int kBlockOfStatistics = 256;
constexpr std::int64_t kTileOfStatistics = kBlockOfStatistics * kLogitsOfVec;

// For half-precision types it uses the fast approximate instruction, whose error disappears when results are rounded.
template <class T>
__device__ __forceinline__ Accumulator<T> fast_exp(Accumulator<T> x) {
  if constexpr (sizeof(T) == 2) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634F));
    return result;
  } else {
    return exp(x);
  }
}

// A row of logits that a thread block processes. Registers hold the first kTiles tiles; the rest of a wider row is read
// again in each pass.
template <class T, int kTiles, class A = Accumulator<T>>
class LogitRow {
 public:
  __device__ __forceinline__ LogitRow(const LogitBlock& block, std::int64_t row) : block_(block), row_(row) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      if (column_of(tile) < block.num_columns) load_logits<T>(block, row, column_of(tile), held_[tile]);
  }

  // Calls function(eight logits, their first column) for all columns of this thread.
  template <class Function>
  __device__ __forceinline__ void for_each(const Function& function) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      if (column_of(tile) < block_.num_columns) function(held_[tile], column_of(tile));
    for (std::int64_t column = column_of(kTiles); column < block_.num_columns; column += kTileOfStatistics) {
      A z[kLogitsOfVec];
      load_logits<T>(block_, row_, column, z);
      function(z, column);
    }
  }

  // The greatest logit of the row, on every thread. Finite even if all logits are -inf.
  __device__ __forceinline__ A greatest(A* scratch) const {
    A result = -kInfinity<A>;
    for_each([&](const A(&z)[kLogitsOfVec], std::int64_t) {
#pragma unroll
      for (int j = 0; j < kLogitsOfVec; ++j) result = max(result, z[j]);
    });
    result = block_reduce(result, -kInfinity<A>, scratch, [](A a, A b) { return max(a, b); });
    return max(result, kLowest<A>);  // a row of -inf sums to 0, not NaN
  }

  // The logit of a column. A single thread may call it.
  __device__ __forceinline__ A at(std::int64_t column) const {
    A z[kLogitsOfVec];
    load_logits<T>(block_, row_, column / kLogitsOfVec * kLogitsOfVec, z);
    A result = 0;
#pragma unroll
    for (int j = 0; j < kLogitsOfVec; ++j)
      if (j == column % kLogitsOfVec) result = z[j];
    return result;
  }

 private:
  __device__ __forceinline__ std::int64_t column_of(int tile) const {
    return threadIdx.x * kLogitsOfVec + tile * kTileOfStatistics;
  }

  const LogitBlock& block_;
  const std::int64_t row_;
  A held_[kTiles][kLogitsOfVec];
};

// The statistics of a row over all ranks. They are the same on all ranks, and those of a single rank are its own.
template <class A>
struct RowStatistics {
  A max;
  A sum;
  A target_logit;

  __device__ __forceinline__ A lse() const { return max + log(sum); }
};
template <class A>
__device__ __forceinline__ RowStatistics<A> over_ranks(const StatisticsOfRanks& statistics, std::int64_t num_rows,
                                                       std::int64_t row) {
  const auto of_rank = [&](std::int64_t rank, std::int64_t index) {
    return static_cast<const A*>(statistics.values)[(rank * kNumStatistics + index) * num_rows + row];
  };
  RowStatistics<A> result{.max = of_rank(0, 0), .sum = 0, .target_logit = of_rank(0, 2)};
  for (std::int64_t rank = 1; rank < statistics.num_ranks; ++rank) {
    result.max = max(result.max, of_rank(rank, 0));
    const A target_logit = of_rank(rank, 2);
    if (!isnan(target_logit)) result.target_logit = target_logit;
  }
  for (std::int64_t rank = 0; rank < statistics.num_ranks; ++rank)
    result.sum += of_rank(rank, 1) * exp(of_rank(rank, 0) - result.max);
  return result;
}

// d softcap(x) / dx at z = softcap(x).
template <class A>
__device__ __forceinline__ A slope(A z, double softcap) {
  const A share = z / static_cast<A>(softcap);
  return 1 - share * share;
}

}  // namespace d9d::kernels::detail
