#include "d9d/kernels/linear_cross_entropy/logit_blocks.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "d9d/base/rounding.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/linear/gemm.h"

namespace d9d::kernels::detail {

LogitBlocks::LogitBlocks(const LinearCrossEntropyInput& input, const LogitChunks& chunks, std::int64_t min_numbers)
    : input_(input) {
  for (const LogitFactors& product : input.products) hidden_.push_back(product.hidden.contiguous());
  if (input.bias.defined()) bias_ = input.bias.contiguous();
  const std::int64_t num_rows = input.hidden().size(0);
  const std::int64_t chunk_rows = std::min(std::max<std::int64_t>(num_rows, 1), chunks.num_rows);
  for (std::int64_t begin = 0; begin < num_rows; begin += chunk_rows)
    rows_.push_back({.begin = begin, .size = std::min(chunk_rows, num_rows - begin)});
  std::int64_t first = 0;
  for (std::size_t split = 0; split < input.weights().size(); ++split) {
    const std::int64_t size = input.weights()[split].size(0);
    const std::int64_t num_blocks = divide_up(size, chunks.num_columns);
    const std::int64_t block_size = round_up(divide_up(size, std::max<std::int64_t>(num_blocks, 1)), kColumnUnit);
    splits_.push_back({.first = first,
                       .padded_first = padded_vocabulary_,
                       .first_block = static_cast<std::int64_t>(columns_.size()),
                       .block_size = block_size});
    for (std::int64_t begin = 0; begin < size; begin += block_size)
      columns_.push_back({.split = split, .begin = begin, .size = std::min(block_size, size - begin)});
    row_stride_ = std::max(row_stride_, block_size);
    first += size;
    padded_vocabulary_ += round_up(size, kColumnUnit);
  }
  buffer_ = at::empty({std::max(chunk_rows * row_stride_, min_numbers)},
                      input.hidden().options().dtype(at::toOpMathType(input.hidden().scalar_type())));
}

LogitBlock LogitBlocks::compute(const LogitRows& rows, const ColumnRange& columns) const {
  const at::Tensor logits = buffer_.as_strided({rows.size, columns.size}, {row_stride_, 1});
  write_rows_product(logits, hidden(0, rows), weight(0, columns));
  for (std::size_t product = 1; product < hidden_.size(); ++product)
    accumulate(logits, hidden(product, rows), weight(product, columns).t());
  const std::int64_t first = splits_[columns.split].first + columns.begin;
  return {.dtype = dtype_of(input_.hidden()),
          .logits = buffer_.mutable_data_ptr(),
          .row_stride = row_stride_,
          .num_rows = rows.size,
          .num_columns = columns.size,
          .first_column = first,
          .bias = bias_.defined() ? bias_.narrow(0, first, columns.size).const_data_ptr() : nullptr,
          .softcap = input_.softcap.value_or(0),
          .targets = input_.targets.const_data_ptr<std::int64_t>() + rows.begin};
}

at::Tensor LogitBlocks::gradient(const LogitRows& rows, const ColumnRange& columns) const {
  const at::Tensor narrow_buffer = buffer_.view(input_.hidden().scalar_type());
  return narrow_buffer.as_strided({rows.size, columns.size},
                                  {row_stride_ * (narrow_buffer.numel() / buffer_.numel()), 1});
}

LinearCrossEntropyBackward empty_gradients(const LinearCrossEntropyInput& input, const LinearCrossEntropyWanted& wanted,
                                           at::ScalarType weight_dtype) {
  LinearCrossEntropyBackward result;
  for (std::size_t product = 0; product < input.products.size(); ++product) {
    const LogitFactors& factors = input.products[product];
    result.products.push_back({.hidden = wanted.products[product].hidden
                                             ? at::empty(factors.hidden.sizes(), factors.hidden.options())
                                             : at::Tensor(),
                               .weights = empty_weight_gradients(factors, wanted.products[product], weight_dtype)});
  }
  if (wanted.bias)
    result.bias = at::zeros(input.bias.sizes(), input.bias.options().dtype(at::toOpMathType(input.bias.scalar_type())));
  return result;
}

}  // namespace d9d::kernels::detail
