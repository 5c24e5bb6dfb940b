// The passes of linear_cross_entropy over logits on a GPU, around matrix products that others make.
//
// Legend   T = dtype of hidden, bias and gradients; A = its accumulator: double for double, otherwise float.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"

struct CUstream_st;

namespace d9d::kernels::detail {

inline constexpr std::int64_t kIgnored = -1;  // the target of a row that does not count

// rows[i] = kIgnored where targets[i] is ignore_index, `vocabulary` where it is another id outside [0, vocabulary),
// otherwise the target.
struct CheckTargetsArgs {
  const std::int64_t* targets;  // [size]
  std::int64_t* rows;           // [size]
  std::int64_t size;
  std::int64_t ignore_index;
  std::int64_t vocabulary;
};
void launch_check_targets(const CheckTargetsArgs& args, CUstream_st* stream);

// Some rows and some columns of hidden * weight^T, without bias and soft cap.
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

// max, sum and target_logit (if the target is one of the columns) are brought up to date with a block: the greatest
// logit so far, sum(exp(logit - max)), and the target's logit. Rows that are ignored stay as they are.
struct LogitStatisticsArgs {
  LogitBlock block;
  void* max;           // [num_rows] A, -inf before the first block
  void* sum;           // [num_rows] A, 0 before the first block
  void* target_logit;  // [num_rows] A
};
void launch_logit_statistics(const LogitStatisticsArgs& args, CUstream_st* stream);

// The same for T = bf16 where gradients follow, which keeps the exponentials: exp(logit - reference) * slope of the
// soft cap, as bf16, whose exponent has room for references far from the greatest logit. So a row has one reference,
// the greatest logit of its first block, until one more than kMaxAboveReference above it comes: then that, and
// launch_rescale_exponentials brings the blocks before in line.
inline constexpr float kMaxAboveReference = 40;
struct LogitExponentialsArgs {
  LogitBlock block;
  bool is_first;                     // of its rows
  float* reference;                  // [num_rows]
  float* sum;                        // [num_rows] of exp(logit - reference)
  float* target_logit;               // [num_rows], NaN while no block had it
  void* exponentials;                // [num_rows, exponentials_stride], 16-byte aligned; 0 for rows that are ignored
  std::int64_t exponentials_stride;  // a multiple of 8
  std::int64_t first_exponential;    // where in a row the block begins, a multiple of 8
  std::int64_t* target_place;        // [num_rows]: where in a row the target is, -1 while no block had it
  float* reference_of_block;         // of row r at r * reference_of_block_stride
  std::int64_t reference_of_block_stride;
};
void launch_logit_exponentials(const LogitExponentialsArgs& args, CUstream_st* stream);

// Brings blocks of exponentials to the reference that their row has now.
struct RescaleExponentialsArgs {
  void* exponentials;               // [num_rows, num_columns] bf16, 16-byte aligned
  std::int64_t row_stride;          // a multiple of 8, at least num_columns
  std::int64_t num_rows;            // below 2^31
  std::int64_t num_columns;         //
  std::int64_t block_columns;       // a multiple of 8
  const std::int64_t* targets;      // [num_rows]
  const float* reference;           // [num_rows]
  const float* reference_of_block;  // of row r and block b at r * reference_of_block_stride + b
  std::int64_t reference_of_block_stride;
};
void launch_rescale_exponentials(const RescaleExponentialsArgs& args, CUstream_st* stream);

// lse = log(sum) + max, loss = lse - target_logit + z_loss_weight * lse^2; both 0 where ignored.
struct CrossEntropyLossArgs {
  Dtype dtype;
  std::int64_t num_rows;
  const std::int64_t* targets;
  const void* max;
  const void* sum;
  const void* target_logit;
  double z_loss_weight;
  void* loss;  // [num_rows] A
  void* lse;   // [num_rows] A
};
void launch_cross_entropy_loss(const CrossEntropyLossArgs& args, CUstream_st* stream);

// Replaces logits by d(sum over rows of grad_loss * loss + grad_lse * lse) / d(hidden * weight^T) in T; a row of them
// begins where the row of logits began. 0 where ignored.
struct LogitGradientArgs {
  LogitBlock block;
  const void* lse;        // [num_rows] A
  const void* grad_loss;  // [num_rows] A of any stride, or null: 0
  std::int64_t grad_loss_stride;
  const void* grad_lse;  // the same
  std::int64_t grad_lse_stride;
  double z_loss_weight;
};
void launch_logit_gradient(const LogitGradientArgs& args, CUstream_st* stream);

// What is left to do for rows of exponentials whose loss has grad_loss = 1 and grad_lse = 0: the gradient of a logit is
// factor[row] * exponential. At the target the exponential becomes what makes that so. Rows of hidden times their
// factor are what the gradient of a weight is a sum of.
struct FinishRowsArgs {
  std::int64_t num_rows;  // below 2^31
  std::int64_t hidden_size;
  const std::int64_t* targets;
  const float* reference;            // [num_rows]
  const float* sum;                  // [num_rows]
  const float* target_logit;         // [num_rows]
  const std::int64_t* target_place;  // [num_rows]; negative: none
  double z_loss_weight;
  double softcap;      // 0: none
  float* loss;         // [num_rows]
  float* lse;          // [num_rows]
  float* factor;       // [num_rows]; 0 where ignored
  void* exponentials;  // [num_rows, exponentials_stride] bf16
  std::int64_t exponentials_stride;
  const void* hidden;   // [num_rows, hidden_size] bf16
  void* scaled_hidden;  // the same; null: not wanted
};
void launch_finish_rows(const FinishRowsArgs& args, CUstream_st* stream);

// out[row] = factor[row] * values[row], fp32 to bf16.
struct ScaleRowsArgs {
  std::int64_t num_rows;
  std::int64_t num_columns;
  const float* values;  // [num_rows, num_columns], contiguous
  const float* factor;  // [num_rows]
  void* out;            // [num_rows, num_columns], contiguous
};
void launch_scale_rows(const ScaleRowsArgs& args, CUstream_st* stream);

// out = values * *factor, or out + values * *factor; both contiguous, of any alignment.
struct PutScaledArgs {
  Dtype out_dtype;     // kBFloat16 or kFloat32
  Dtype values_dtype;  // the same
  void* out;
  const void* values;
  std::int64_t size;
  bool adds;
  const float* factor;  // on the device
};
void launch_put_scaled(const PutScaledArgs& args, CUstream_st* stream);

// values *= *factor; reads and writes nothing when that is 1. values: bf16, 16-byte aligned.
struct ScaleArgs {
  void* values;
  std::int64_t size;
  const float* factor;  // on the device
};
void launch_scale(const ScaleArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
