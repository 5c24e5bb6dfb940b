// Formula: offsets[i, n] = cu_seqlens[n] * strides[i], lengths[n] = cu_seqlens[n + 1] - cu_seqlens[n], or 0 if
//          other_cu_seqlens[n + 1] = other_cu_seqlens[n];
//          partial[c, h] = sum over rows of exp(sinks[h] - logsumexp) * (grad_logsumexp - sum_d out * grad_out);
//          out = sum over parts p of exp(logsumexp_p - logsumexp) * out_p;
//          row r of sequence n = value, if n is empty in other_cu_seqlens or r is before all windows.
// Legend:  n sequence, i tensor, h head, c chunk of rows, d feature.
// Mapping: packed_offsets: one thread per sequence. sink_gradient: one block per chunk and head, whose warps take one
//          row at a time. merge_blocks: kLanes threads, with 8 features each, per query and head. fill_unseen: a warp
//          per row.
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
  const auto begin_of = [&](const std::int32_t* cu_seqlens, std::int64_t sequence) {
    return cu_seqlens[sequence < args.num_sequences ? sequence : args.num_sequences];
  };
  const auto length_of = [&](const std::int32_t* cu_seqlens) {
    return begin_of(cu_seqlens, n + 1) - begin_of(cu_seqlens, n);
  };
  const std::int32_t begin = begin_of(args.cu_seqlens, n);
  if (n < args.num_offered) args.lengths[n] = length_of(args.other_cu_seqlens) == 0 ? 0 : length_of(args.cu_seqlens);
#pragma unroll
  for (int i = 0; i < PackedOffsetsArgs::kMaxTensors; ++i)
    if (i < args.num_tensors) args.offsets[i * (args.num_offered + 1) + n] = begin * args.strides[i];
}

__global__ void __launch_bounds__(kBlock) fill_unseen(const FillUnseenArgs args) {
  pdl_wait_and_trigger();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  if (row >= args.num_rows) return;
  std::int64_t sequence = 0, end = args.num_sequences;  // the last one that begins at or before the row
  while (end - sequence > 1) {
    const std::int64_t middle = (sequence + end) / 2;
    (args.cu_seqlens[middle] <= row ? sequence : end) = middle;
  }
  const std::int64_t num_others = args.other_cu_seqlens[sequence + 1] - args.other_cu_seqlens[sequence];
  const bool is_before_windows = args.left >= 0 && row < args.cu_seqlens[sequence + 1] - num_others - args.left;
  if (num_others > 0 && !is_before_windows) return;
#pragma unroll
  for (int i = 0; i < FillUnseenArgs::kMaxTensors; ++i) {
    const FillUnseenArgs::Rows& rows = args.tensors[i];
    for (std::int64_t word = threadIdx.x % kWarpSize; word < rows.num_words; word += kWarpSize) {
      rows.data[row * rows.num_words + word] = rows.value;
    }
  }
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

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlock) merge_blocks(const MergeBlocksArgs args) {
  pdl_wait_and_trigger();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kBlock / kLanes) + threadIdx.x / kLanes;
  if (row >= args.batch * args.num_queries * args.num_heads) return;
  const std::int64_t head = row % args.num_heads, position = row / args.num_heads;
  const std::int64_t query = position % args.num_queries, sequence = position / args.num_queries;
  const int feature = static_cast<int>(threadIdx.x) % kLanes * kWidth<T>;
  float of_part[MergeBlocksArgs::kMaxParts];
  float greatest = args.sinks == nullptr ? -INFINITY : args.sinks[head];
#pragma unroll
  for (int i = 0; i < MergeBlocksArgs::kMaxParts; ++i) {
    of_part[i] = -INFINITY;
    if (i >= args.num_parts) continue;
    const auto& part = args.parts[i];
    const std::int64_t index = query - part.first_query;
    if (index < 0 || index >= part.num_queries) continue;
    of_part[i] = part.logsumexp[(sequence * args.num_heads + head) * part.num_queries + index];
    greatest = fmaxf(greatest, of_part[i]);
  }
  float sum = args.sinks == nullptr ? 0.0F : expf(args.sinks[head] - greatest);
#pragma unroll
  for (int i = 0; i < MergeBlocksArgs::kMaxParts; ++i)
    if (of_part[i] != -INFINITY) sum += expf(of_part[i] - greatest);
  const float total = greatest == -INFINITY ? -INFINITY : greatest + logf(sum);
  if (feature == 0) args.logsumexp[(sequence * args.num_heads + head) * args.num_queries + query] = total;
  if (feature >= args.num_features) return;
  float out[kWidth<T>] = {};
#pragma unroll
  for (int i = 0; i < MergeBlocksArgs::kMaxParts; ++i) {
    if (of_part[i] == -INFINITY) continue;
    const auto& part = args.parts[i];
    const std::int64_t place = (sequence * part.num_queries + query - part.first_query) * args.num_heads + head;
    const auto values = load_vec<T>(part.out, place * args.num_features + feature);
    const float weight = expf(of_part[i] - total);
#pragma unroll
    for (int j = 0; j < kWidth<T>; ++j) out[j] += weight * widen(values.value[j]);
  }
  Vec16<T> result;
#pragma unroll
  for (int j = 0; j < kWidth<T>; ++j) result.value[j] = narrow<T>(out[j]);
  store_vec(result, args.out, row * args.num_features + feature);
}

template <class T>
void merge(const MergeBlocksArgs& args, CUstream_st* stream) {
  const std::int64_t num_rows = args.batch * args.num_queries * args.num_heads;
  if (args.num_features <= 128) {
    launch_pdl(merge_blocks<T, 16>, {num_blocks(num_rows, kBlock / 16), kBlock}, stream, args);
  } else {
    launch_pdl(merge_blocks<T, 32>, {num_blocks(num_rows, kBlock / 32), kBlock}, stream, args);
  }
}

}  // namespace

void d9d_launch_merge_blocks(const MergeBlocksArgs& args, CUstream_st* stream) {
  if (args.dtype == Dtype::kBFloat16) {
    merge<__nv_bfloat16>(args, stream);
  } else {
    merge<__half>(args, stream);
  }
  check_launch("attention");
}

void d9d_launch_packed_offsets(const PackedOffsetsArgs& args, CUstream_st* stream) {
  launch_pdl(packed_offsets, {num_blocks(args.num_offered + 1, kBlock), kBlock}, stream, args);
  check_launch("attention");
}

void d9d_launch_fill_unseen(const FillUnseenArgs& args, CUstream_st* stream) {
  launch_pdl(fill_unseen, {num_blocks(args.num_rows, kWarps), kBlock}, stream, args);
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
