// Formula: norm = (sum of |x|^p)^(1 / p) over all elements of many tensors; for p = infinity the largest |x|.
// Legend:  p = 1, 2, 3 or infinity.
// Mapping: power_sums: one block per chunk of a tensor (tensor_chunks.h), whose threads read 16 bytes at a time.
//          norm_of_power_sums: one block adds the sums of all chunks.
// Numerics: sums of up to 32 powers are in the accumulator of the element type, all other sums in fp64. The order is
//          fixed, multiply-adds are fused explicitly, and NaN propagates.
// Traffic: every element is read once; 8 bytes per chunk are written and read again.
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/reduce.cuh"
#include "d9d/kernels/device/tensor_chunks.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/global_norm/global_norm_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;
constexpr int kRootBlock = 1024;

// The sum of a and b; for NormOrder::kInfinity the larger one, or NaN if one is NaN.
template <NormOrder kOrder, class A>
__device__ __forceinline__ A combine(A a, A b) {
  if constexpr (kOrder == NormOrder::kInfinity) return b > a || b != b ? b : a;
  return a + b;
}

// Adds the power of element x to `sum`. fma() is called explicitly, so that aligned and unaligned tensors give the same
// bits.
template <NormOrder kOrder, class A>
__device__ __forceinline__ A add_power(A sum, A x) {
  const A magnitude = x < 0 ? -x : x;
  if constexpr (kOrder == NormOrder::kTwo) return fma(x, x, sum);
  if constexpr (kOrder == NormOrder::kThree) return fma(x * x, magnitude, sum);
  return combine<kOrder>(sum, magnitude);
}

// Combines the values of all threads of a block, in a fixed order. Thread 0 gets the result.
template <NormOrder kOrder, int kThreads>
__device__ __forceinline__ double combine_block(double value) {
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ double of_warp[kWarps];
  value = warp_reduce(value, combine<kOrder, double>);
  const unsigned lane = threadIdx.x % kWarpSize;
  const unsigned warp = threadIdx.x / kWarpSize;
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  if (warp == 0) value = warp_reduce(lane < kWarps ? of_warp[lane] : 0.0, combine<kOrder, double>);
  return value;
}

template <class T, NormOrder kOrder>
__global__ __launch_bounds__(kBlock) void power_sums(const __grid_constant__ PowerSumArgs args) {
  using A = Accumulator<T>;
  constexpr int kSize = kWidth<T>;
  constexpr int kStride = kBlock * kSize;
  const TensorChunk chunk = find_chunk(args.chunks, blockIdx.x);
  const std::int64_t begin = chunk.index * kNormChunkSize;
  const T* const data = static_cast<const T*>(args.data[chunk.tensor]) + begin;
  const std::int64_t rest = args.size[chunk.tensor] - begin;
  const int size = static_cast<int>(rest < kNormChunkSize ? rest : kNormChunkSize);
  const int whole_size = is_aligned(data) ? size / kSize * kSize : 0;
  A lanes[kSize] = {};
  const auto add = [&](const Vec<T, kSize>& pack) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) lanes[j] = add_power<kOrder>(lanes[j], widen(pack.value[j]));
  };
  int i = static_cast<int>(threadIdx.x) * kSize;
#pragma unroll 4
  for (; i < whole_size; i += kStride) add(load_vec_partial<T, kSize>(data + i, kSize, true));
#pragma unroll 1
  for (; i < size; i += kStride) add(load_vec_partial<T, kSize>(data + i, size - i, false));
  double total = 0;
#pragma unroll
  for (int j = 0; j < kSize; ++j) total = combine<kOrder>(total, static_cast<double>(lanes[j]));
  total = combine_block<kOrder, kBlock>(total);
  if (threadIdx.x == 0) args.partial[blockIdx.x] = total;
}

template <NormOrder kOrder>
__global__ __launch_bounds__(kRootBlock) void norm_of_power_sums(const double* partial, std::int64_t num_partial,
                                                                 double* norm) {
  double total = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < num_partial; i += kRootBlock) total = combine<kOrder>(total, partial[i]);
  total = combine_block<kOrder, kRootBlock>(total);
  if (threadIdx.x != 0) return;
  if constexpr (kOrder == NormOrder::kTwo) total = sqrt(total);
  if constexpr (kOrder == NormOrder::kThree) total = cbrt(total);
  *norm = total;
}

// Carries an order as a type, for template argument deduction.
template <NormOrder>
struct Order {};

template <class Function>
void with_order(NormOrder order, const Function& function) {
  switch (order) {
    case NormOrder::kOne:
      return function(Order<NormOrder::kOne>());
    case NormOrder::kTwo:
      return function(Order<NormOrder::kTwo>());
    case NormOrder::kThree:
      return function(Order<NormOrder::kThree>());
    case NormOrder::kInfinity:
      return function(Order<NormOrder::kInfinity>());
  }
}

}  // namespace

void d9d_launch_power_sums(Dtype dtype, NormOrder order, const PowerSumArgs& args, cudaStream_t stream) {
  with_element_type(dtype, [&]<class T>(Element<T>) {
    with_order(order, [&]<NormOrder kOrder>(Order<kOrder>) {
      power_sums<T, kOrder><<<args.chunks.num_chunks(), kBlock, 0, stream>>>(args);
    });
  });
  check_launch("global_norm");
}

void d9d_launch_norm_of_power_sums(NormOrder order, const double* partial, std::int64_t num_partial, double* norm,
                                   cudaStream_t stream) {
  with_order(order, [&]<NormOrder kOrder>(Order<kOrder>) {
    norm_of_power_sums<kOrder><<<1, kRootBlock, 0, stream>>>(partial, num_partial, norm);
  });
  check_launch("global_norm");
}

}  // namespace d9d::kernels::detail
