// Small kernels around attention on a GPU. The launchers use the current device and `stream` and do not synchronise.
// They throw StateError if the kernel does not start, ConfigError in a build without CUDA.
#pragma once

#include <array>
#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Computes where the sequences of packed tensors begin, for cuDNN: lengths[n] = cu_seqlens[n + 1] - cu_seqlens[n], or 0
// for a sequence that is empty in other_cu_seqlens, and offsets[i][n] = cu_seqlens[n] * strides[i] with n up to
// num_offered. Sequences from num_sequences on are empty.
struct PackedOffsetsArgs {
  static constexpr int kMaxTensors = 6;
  const std::int32_t* cu_seqlens = nullptr;        // [num_sequences + 1]
  const std::int32_t* other_cu_seqlens = nullptr;  // [num_sequences + 1]
  std::int64_t num_sequences = 0;
  std::int64_t num_offered = 0;     // sequences of the results, at least num_sequences
  std::int32_t* lengths = nullptr;  // [num_offered]
  std::int64_t* offsets = nullptr;  // [num_tensors, num_offered + 1]
  int num_tensors = 0;
  std::array<std::int64_t, kMaxTensors> strides = {};
};
extern "C" void d9d_launch_packed_offsets(const PackedOffsetsArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_packed_offsets", decltype(d9d_launch_packed_offsets)> launch_packed_offsets;

// Fills the rows of packed tensors that belong to sequences which are empty in other_cu_seqlens, and, of keys, those
// before all windows: row r of sequence n with r < cu_seqlens[n + 1] - (queries of n) - left.
struct FillUnseenArgs {
  static constexpr int kMaxTensors = 2;
  struct Rows {
    std::uint32_t* data = nullptr;
    std::int64_t num_words = 0;  // of a row; 0: no tensor
    std::uint32_t value = 0;     // of each word
  };
  const std::int32_t* cu_seqlens = nullptr;        // [num_sequences + 1]
  const std::int32_t* other_cu_seqlens = nullptr;  // [num_sequences + 1]
  std::int64_t num_sequences = 0;
  std::int64_t num_rows = 0;
  std::int64_t left = -1;  // of the window of queries in other_cu_seqlens; -1: none
  std::array<Rows, kMaxTensors> tensors = {};
};
extern "C" void d9d_launch_fill_unseen(const FillUnseenArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_fill_unseen", decltype(d9d_launch_fill_unseen)> launch_fill_unseen;

// partial[c, h] = sum over the rows of chunk c of exp(sinks[h] - logsumexp) * (grad_logsumexp - grad_out . out).
// Legend   R rows (of all sequences), H heads, D features (a multiple of 8); chunk c has the rows r with
//          r / rows_per_chunk = c.
struct SinkGradientArgs {
  Dtype dtype = Dtype::kBFloat16;  // of out and grad_out: kBFloat16 or kFloat16
  std::int64_t num_rows = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_features = 0;
  std::int64_t rows_per_chunk = 0;
  const void* out = nullptr;              // [R, H, D]
  const void* grad_out = nullptr;         // [R, H, D]
  const float* logsumexp = nullptr;       // [R, H]
  const float* grad_logsumexp = nullptr;  // [R, H]; null counts as zeros
  const float* sinks = nullptr;           // [H]
  float* partial = nullptr;               // [chunks, H]
};
extern "C" void d9d_launch_sink_gradient(const SinkGradientArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_sink_gradient", decltype(d9d_launch_sink_gradient)> launch_sink_gradient;

// out = sum over parts of exp(part.logsumexp - logsumexp) * part.out, where logsumexp is that of the logsumexps of the
// parts, and of the sink.
// Legend   B batch, S queries, H heads, D features (a multiple of 8, at most 256)
struct MergeBlocksArgs {
  static constexpr int kMaxParts = 8;
  struct Part {
    const void* out = nullptr;         // [B, num_queries, H, D]
    const float* logsumexp = nullptr;  // [B, H, num_queries]
    std::int64_t first_query = 0;
    std::int64_t num_queries = 0;
  };
  Dtype dtype = Dtype::kBFloat16;  // of all out: kBFloat16 or kFloat16
  int num_parts = 0;
  std::array<Part, kMaxParts> parts = {};
  std::int64_t batch = 0;
  std::int64_t num_queries = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_features = 0;
  const float* sinks = nullptr;  // [H]; null: none
  void* out = nullptr;           // [B, S, H, D]
  float* logsumexp = nullptr;    // [B, H, S]
};
extern "C" void d9d_launch_merge_blocks(const MergeBlocksArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_merge_blocks", decltype(d9d_launch_merge_blocks)> launch_merge_blocks;

}  // namespace d9d::kernels::detail
