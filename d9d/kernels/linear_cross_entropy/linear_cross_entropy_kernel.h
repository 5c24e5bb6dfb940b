// The passes of linear_cross_entropy over logits on a GPU, around matrix products that others make.
//
// Legend   T = dtype of hidden, bias and gradients; A = its accumulator: double for double, otherwise float.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"

struct CUstream_st;

namespace d9d::kernels::detail {

inline constexpr std::int64_t kIgnored = -1;  // the target of a row that does not count

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
  // For T = bf16, or null: exp(logit - packed_max) as 5 bits of exponent and 11 of significand, 0 below 2^-31.
  std::uint16_t* packed;
  std::int64_t packed_stride;  // of rows; a multiple of 8
  float* packed_max;           // of row r at r * packed_max_stride
  std::int64_t packed_max_stride;
};
void launch_logit_statistics(const LogitStatisticsArgs& args, CUstream_st* stream);

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

// The same for grad_loss = 1 and grad_lse = 0 from packed exponentials, which bf16 gradients replace.
struct PackedLogitGradientArgs {
  std::uint16_t* packed;        // [num_rows, num_columns], 16-byte aligned
  std::int64_t row_stride;      // a multiple of 8, at least num_columns
  std::int64_t num_rows;        // below 2^31
  std::int64_t num_columns;     //
  std::int64_t block_columns;   // of one packed_max; a multiple of 8
  std::int64_t first_column;    // in the vocabulary
  double softcap;               // 0: none
  const std::int64_t* targets;  // [num_rows]
  const float* packed_max;      // of row r and block b at r * packed_max_stride + b
  std::int64_t packed_max_stride;
  const float* lse;           // [num_rows]
  const float* target_logit;  // [num_rows]
  double z_loss_weight;
};
void launch_packed_logit_gradient(const PackedLogitGradientArgs& args, CUstream_st* stream);

// values *= *factor; reads and writes nothing when that is 1. values: bf16, 16-byte aligned.
struct ScaleArgs {
  void* values;
  std::int64_t size;
  const float* factor;  // on the device
};
void launch_scale(const ScaleArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
