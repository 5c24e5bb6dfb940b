// The CUDA kernels of linear_cross_entropy: passes over logits that matrix products elsewhere compute.
//
// Legend   T = dtype of hidden, bias and gradients; A = its accumulator: double for double, otherwise float.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"

struct CUstream_st;

namespace d9d::kernels::detail {

inline constexpr std::int64_t kIgnored = -1;  // the target of an ignored row

// rows[i] = kIgnored if targets[i] is ignore_index, `vocabulary` if it is another id outside [0, vocabulary), otherwise
// targets[i].
struct CheckTargetsArgs {
  const std::int64_t* targets;  // [size]
  std::int64_t* rows;           // [size]
  std::int64_t size;
  std::int64_t ignore_index;
  std::int64_t vocabulary;
};
extern "C" void d9d_launch_check_targets(const CheckTargetsArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_check_targets", decltype(d9d_launch_check_targets)> launch_check_targets;

// Some rows and columns of hidden * weight^T, before bias and softcap are applied.
struct LogitBlock {
  Dtype dtype;                  // T
  void* logits;                 // [num_rows, num_columns] A, 16-byte aligned
  std::int64_t row_stride;      // a multiple of 8, at least num_columns
  std::int64_t num_rows;        // below 2^31
  std::int64_t num_columns;     //
  std::int64_t first_column;    // in the vocabulary
  const void* bias;             // [num_columns] T, or null
  double softcap;               // 0: none
  const std::int64_t* targets;  // [num_rows], in the vocabulary, or kIgnored
};

// Statistics of rows over the columns of each rank that has a part of the vocabulary: [num_ranks, kNumStatistics,
// num_rows] A, contiguous. For each row the greatest logit or a reference near it, sum(exp(logit - that number)), and
// the target's logit, NaN on ranks that do not have it. Arbitrary for ignored rows.
inline constexpr std::int64_t kNumStatistics = 3;
struct StatisticsOfRanks {
  const void* values;
  std::int64_t num_ranks;
};

// Updates the statistics of rows with a block: max, the greatest logit so far, sum = sum(exp(logit - max)), and, if the
// target is one of the columns, target_logit. Statistics of ignored rows stay unchanged.
struct LogitStatisticsArgs {
  LogitBlock block;
  void* max;           // [num_rows] A, -inf before the first block
  void* sum;           // [num_rows] A, 0 before the first block
  void* target_logit;  // [num_rows] A
};
extern "C" void d9d_launch_logit_statistics(const LogitStatisticsArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_logit_statistics", decltype(d9d_launch_logit_statistics)>
    launch_logit_statistics;

// The same for T = bf16 if gradients follow. It also writes the exponentials, exp(logit - reference) * slope of the
// softcap, in bf16, whose exponent range allows references far from the greatest logit. So the reference of a row is
// the greatest logit of its first block. Only if a later block has a logit that is more than kMaxAboveReference above
// the reference, that block's greatest logit becomes the reference, and launch_rescale_exponentials must rescale the
// earlier blocks.
inline constexpr float kMaxAboveReference = 40;
struct LogitExponentialsArgs {
  LogitBlock block;
  bool is_first;                     // the first block of its rows
  float* reference;                  // [num_rows]
  float* sum;                        // [num_rows] of exp(logit - reference)
  float* target_logit;               // [num_rows], NaN until a block contains the target
  void* exponentials;                // [num_rows, exponentials_stride], 16-byte aligned; 0 for ignored rows
  std::int64_t exponentials_stride;  // a multiple of 8
  std::int64_t first_exponential;    // column of `exponentials` where the block begins, a multiple of 8
  std::int64_t* target_place;        // [num_rows]: column of `exponentials` of the target, -1 until a block contains it
  float* reference_of_block;         // the reference of the block for row r, at r * reference_of_block_stride
  std::int64_t reference_of_block_stride;
};
extern "C" void d9d_launch_logit_exponentials(const LogitExponentialsArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_logit_exponentials", decltype(d9d_launch_logit_exponentials)>
    launch_logit_exponentials;

// Rescales blocks of exponentials from the reference with which they were computed to the final one of their row: that
// of this rank's columns, or the greatest of all ranks if that is more than kMaxBelowOtherRanks above. So the sum of
// the exponentials of all columns is below exp(kMaxBelowOtherRanks + kMaxAboveReference + log(2^31)), and its inverse
// is a normal number.
inline constexpr float kMaxBelowOtherRanks = 20;
struct RescaleExponentialsArgs {
  void* exponentials;               // [num_rows, num_columns] bf16, 16-byte aligned
  std::int64_t row_stride;          // a multiple of 8, at least num_columns
  std::int64_t num_rows;            // below 2^31
  std::int64_t num_columns;         //
  std::int64_t block_columns;       // a multiple of 8
  const std::int64_t* targets;      // [num_rows]
  const float* reference;           // [num_rows], of this rank's columns
  StatisticsOfRanks statistics;     // A = float
  const float* reference_of_block;  // for row r and block b, at r * reference_of_block_stride + b
  std::int64_t reference_of_block_stride;
};
extern "C" void d9d_launch_rescale_exponentials(const RescaleExponentialsArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_rescale_exponentials", decltype(d9d_launch_rescale_exponentials)>
    launch_rescale_exponentials;

// With the statistics of all ranks together: lse = log(sum) + max, loss = lse - target_logit + z_loss_weight * lse^2,
// both 0 for ignored rows.
struct CrossEntropyLossArgs {
  Dtype dtype;
  std::int64_t num_rows;
  const std::int64_t* targets;
  StatisticsOfRanks statistics;
  double z_loss_weight;
  void* loss;  // [num_rows] A
  void* lse;   // [num_rows] A
};
extern "C" void d9d_launch_cross_entropy_loss(const CrossEntropyLossArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_cross_entropy_loss", decltype(d9d_launch_cross_entropy_loss)>
    launch_cross_entropy_loss;

// Overwrites logits by d(sum over rows of grad_loss * loss + grad_lse * lse) / d(hidden * weight^T) in T. Each row of
// gradients begins where its row of logits began. Gradients of ignored rows are 0.
struct LogitGradientArgs {
  LogitBlock block;
  const void* lse;        // [num_rows] A
  const void* grad_loss;  // [num_rows] A of any stride; null counts as 0
  std::int64_t grad_loss_stride;
  const void* grad_lse;  // the same
  std::int64_t grad_lse_stride;
  double z_loss_weight;
  double filter_eps;
  void* threshold;  // [num_rows] A: filter_eps * the scale of the row (gradient_filter.h); null: not wanted
};
extern "C" void d9d_launch_logit_gradient(const LogitGradientArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_logit_gradient", decltype(d9d_launch_logit_gradient)> launch_logit_gradient;

// Finishes rows of exponentials for grad_loss = 1 and grad_lse = 0. Afterwards the gradient of a logit is factor[row] *
// exponential, for which the target's exponential is replaced. Also writes rows of hidden times their factor: a
// weight's gradient is the product of the exponentials with these rows.
struct FinishRowsArgs {
  std::int64_t num_rows;  // below 2^31
  std::int64_t hidden_size;
  const std::int64_t* targets;
  const float* reference;            // [num_rows], of this rank's columns
  StatisticsOfRanks statistics;      // A = float
  const std::int64_t* target_place;  // [num_rows]; negative: none
  double z_loss_weight;
  double softcap;      // 0: none
  float* loss;         // [num_rows]
  float* lse;          // [num_rows]
  float* factor;       // [num_rows]; 0 for ignored rows
  void* exponentials;  // [num_rows, exponentials_stride] bf16
  std::int64_t exponentials_stride;
  const void* hidden;   // [num_rows, hidden_size] bf16
  void* scaled_hidden;  // the same; null: not wanted
  double filter_eps;
  float* threshold;  // [num_rows]: filter_eps * the scale of the row / |factor|, 0 for ignored rows; null: not wanted
};
extern "C" void d9d_launch_finish_rows(const FinishRowsArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_finish_rows", decltype(d9d_launch_finish_rows)> launch_finish_rows;

// Writes zeros to each tile, one row by kFilterTileColumns columns from column 0 on, whose absolute values are all
// below the row's threshold. NaN is not below.
inline constexpr std::int64_t kFilterTileColumns = 256;
struct ClearTilesArgs {
  Dtype dtype;              // T
  void* values;             // [num_rows, num_columns] T, 16-byte aligned; up to a multiple of 8 columns is accessed
  std::int64_t row_stride;  // a multiple of 8, at least num_columns
  std::int64_t num_rows;    // below 2^31
  std::int64_t num_columns;
  const void* threshold;  // [num_rows] A
};
extern "C" void d9d_launch_clear_tiles(const ClearTilesArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_clear_tiles", decltype(d9d_launch_clear_tiles)> launch_clear_tiles;

// out[row] = factor[row] * values[row], fp32 to bf16.
struct ScaleRowsArgs {
  std::int64_t num_rows;
  std::int64_t num_columns;
  const float* values;  // [num_rows, num_columns], contiguous
  const float* factor;  // [num_rows]
  void* out;            // [num_rows, num_columns], contiguous
};
extern "C" void d9d_launch_scale_rows(const ScaleRowsArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_scale_rows", decltype(d9d_launch_scale_rows)> launch_scale_rows;

// out = values * *factor, or with `adds` out += values * *factor. Both tensors are contiguous, of any alignment.
struct PutScaledArgs {
  Dtype out_dtype;     // kBFloat16 or kFloat32
  Dtype values_dtype;  // kBFloat16 or kFloat32
  void* out;
  const void* values;
  std::int64_t size;
  bool adds;
  const float* factor;  // on the device
};
extern "C" void d9d_launch_put_scaled(const PutScaledArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_put_scaled", decltype(d9d_launch_put_scaled)> launch_put_scaled;

// values *= *factor; reads and writes no values if the factor is 1. values are bf16 and 16-byte aligned.
struct ScaleArgs {
  void* values;
  std::int64_t size;
  const float* factor;  // on the device
};
extern "C" void d9d_launch_scale(const ScaleArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_scale", decltype(d9d_launch_scale)> launch_scale;

}  // namespace d9d::kernels::detail
