// Formula: offsets[i, n] = cu_seqlens[n] * strides[i], lengths[n] = cu_seqlens[n + 1] - cu_seqlens[n];
//          partial[c, h] = sum over rows of exp(sinks[h] - logsumexp) * (grad_logsumexp - sum_d out * grad_out).
// Legend:  n sequence, i tensor, h head, c chunk of rows, d feature.
// Mapping: packed_offsets: one thread per sequence. sink_gradient: one block per chunk and head, whose warps take one
//          row at a time.
// Numerics: integer offsets; the gradient is summed in fp32, in an order that only the sizes decide.
// Traffic: offsets and lengths are written once; out and grad_out are read once.
#include "d9d/kernels/attention/attention_kernel.h"
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/reduce.cuh"
#include "d9d/kernels/device/vector.cuh"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;
constexpr int kWarps = kBlock / kWarpSize;

__global__ void __launch_bounds__(kBlock) packed_offsets(const PackedOffsetsArgs args) {
  pdl_wait_and_trigger();
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (n > args.num_offered) return;
  const auto begin_of = [&](std::int64_t sequence) {
    return args.cu_seqlens[sequence < args.num_sequences ? sequence : args.num_sequences];
  };
  const std::int32_t begin = begin_of(n);
  if (n < args.num_offered) args.lengths[n] = begin_of(n + 1) - begin;
#pragma unroll
  for (int i = 0; i < PackedOffsetsArgs::kMaxTensors; ++i)
    if (i < args.num_tensors) args.offsets[i * (args.num_offered + 1) + n] = begin * args.strides[i];
}

// One block per chunk of rows and head; a warp takes every kWarps-th row of the chunk.
template <class T>
__global__ void __launch_bounds__(kBlock) sink_gradient(const SinkGradientArgs args) {
  pdl_wait_and_trigger();
  const std::int64_t chunk = blockIdx.x / args.num_heads, head = blockIdx.x % args.num_heads;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const std::int64_t first = chunk * args.rows_per_chunk;
  const std::int64_t last = min(first + args.rows_per_chunk, args.num_rows);
  const float sink = args.sinks[head];
  float sum[1] = {0};
  for (std::int64_t row = first + warp; row < last; row += kWarps) {
    const std::int64_t place = row * args.num_heads + head;
    float dot = 0;
    for (std::int64_t i = lane * kWidth<T>; i < args.num_features; i += kWarpSize * kWidth<T>) {
      const auto out = load_vec<T>(args.out, place * args.num_features + i);
      const auto grad = load_vec<T>(args.grad_out, place * args.num_features + i);
#pragma unroll
      for (int j = 0; j < kWidth<T>; ++j) dot += widen(out.value[j]) * widen(grad.value[j]);
    }
    dot = warp_sum(dot);
    if (lane == 0) {
      const float grad = args.grad_logsumexp == nullptr ? 0.0F : args.grad_logsumexp[place];
      sum[0] += expf(sink - args.logsumexp[place]) * (grad - dot);
    }
  }
  block_sums<kBlock>(sum);
  if (threadIdx.x == 0) args.partial[chunk * args.num_heads + head] = sum[0];
}

}  // namespace

void d9d_launch_packed_offsets(const PackedOffsetsArgs& args, CUstream_st* stream) {
  launch_pdl(packed_offsets, {num_blocks(args.num_offered + 1, kBlock), kBlock}, stream, args);
  check_launch("attention");
}

void d9d_launch_sink_gradient(const SinkGradientArgs& args, CUstream_st* stream) {
  const auto num_chunks = (args.num_rows + args.rows_per_chunk - 1) / args.rows_per_chunk;
  const Grid grid{static_cast<unsigned>(num_chunks * args.num_heads), kBlock};
  if (args.dtype == Dtype::kBFloat16) {
    launch_pdl(sink_gradient<__nv_bfloat16>, grid, stream, args);
  } else {
    launch_pdl(sink_gradient<__half>, grid, stream, args);
  }
  check_launch("attention");
}

}  // namespace d9d::kernels::detail
