// The logits of linear_cross_entropy on a GPU, computed for some rows and some columns of the vocabulary at a time, in
// one buffer.
//
// Example
//   const LogitBlocks logits(input, {.num_rows = 8192, .num_columns = 8192});
//   for (const ColumnRange& columns : logits.columns())
//     for (const LogitRows& rows : logits.rows()) {
//       launch_logit_gradient({.block = logits.compute(rows, columns), ...}, stream);
//       multiply(grad_weight, logits.gradient(rows, columns).t(), logits.hidden(0, rows));
//     }
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_impl.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_kernel.h"

namespace d9d::kernels::detail {

inline constexpr std::int64_t kColumnUnit = 64;  // blocks begin at multiples of it in a weight, for aligned products

struct LogitRows {
  std::int64_t begin;
  std::int64_t size;
};
// Columns of the logits that belong to one weight.
struct ColumnRange {
  std::size_t split;   // index of the weight
  std::int64_t begin;  // the first row of the weight
  std::int64_t size;
};
// The columns of a weight.
struct SplitColumns {
  std::int64_t first;         // the first column in the vocabulary
  std::int64_t padded_first;  // the same in a row that pads each weight to a multiple of kColumnUnit
  std::int64_t first_block;   // index of its first block in columns()
  std::int64_t block_size;    // columns of each of its blocks but the last
};

class LogitBlocks {
 public:
  // Blocks have at most chunks.num_rows rows and chunks.num_columns columns, the latter rounded up to a multiple of
  // kColumnUnit. The buffer has at least min_numbers elements.
  LogitBlocks(const LinearCrossEntropyInput& input, const LogitChunks& chunks, std::int64_t min_numbers = 0);

  [[nodiscard]] const std::vector<LogitRows>& rows() const { return rows_; }
  [[nodiscard]] const std::vector<ColumnRange>& columns() const { return columns_; }
  [[nodiscard]] const SplitColumns& split(std::size_t index) const { return splits_[index]; }
  [[nodiscard]] std::int64_t padded_vocabulary() const { return padded_vocabulary_; }

  // The factors of a product.
  [[nodiscard]] at::Tensor hidden(std::size_t product, const LogitRows& rows) const {
    return hidden_[product].narrow(0, rows.begin, rows.size);
  }
  [[nodiscard]] at::Tensor weight(std::size_t product, const ColumnRange& columns) const {
    return input_.products[product].weights[columns.split].narrow(0, columns.begin, columns.size);
  }
  [[nodiscard]] at::ScalarType hidden_dtype() const { return input_.hidden().scalar_type(); }
  [[nodiscard]] at::TensorOptions wide_options() const { return buffer_.options(); }
  [[nodiscard]] const at::Tensor& buffer() const { return buffer_; }

  // Computes the sum of the products hidden * weight^T into the buffer; the block is valid until the next call.
  [[nodiscard]] LogitBlock compute(const LogitRows& rows, const ColumnRange& columns) const;
  // The view [rows, columns] in hidden's dtype to which launch_logit_gradient writes the gradients of the last block.
  [[nodiscard]] at::Tensor gradient(const LogitRows& rows, const ColumnRange& columns) const;

 private:
  const LinearCrossEntropyInput& input_;
  std::vector<at::Tensor> hidden_;  // of each product
  at::Tensor bias_;
  std::vector<LogitRows> rows_;
  std::vector<ColumnRange> columns_;
  std::vector<SplitColumns> splits_;
  std::int64_t padded_vocabulary_ = 0;
  std::int64_t row_stride_ = 0;
  at::Tensor buffer_;
};

// Uninitialised gradients that are wanted and have no place. That of the bias is zero and in the accumulator's dtype,
// because it is summed over blocks.
[[nodiscard]] LinearCrossEntropyBackward empty_gradients(const LinearCrossEntropyInput& input,
                                                         const LinearCrossEntropyWanted& wanted,
                                                         at::ScalarType weight_dtype);

}  // namespace d9d::kernels::detail
