// Finds matrices that are adjacent parts of a larger matrix in one buffer, and joins them without a copy.
//
// Example
//   const auto follow = [&](std::size_t i) { return follows_in_rows(weights[i], weights[i + 1]); };
//   for (const Run run : runs(weights.size(), follow))
//     const at::Tensor whole = joined_rows(std::span(weights).subspan(run.first, run.count));
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

struct Run {
  std::size_t first = 0;
  std::size_t count = 0;
};

// Splits [0, count) into runs: i and i + 1 are in one run if joins_next(i) is true.
[[nodiscard]] std::vector<Run> runs(std::size_t count, const std::function<bool(std::size_t i)>& joins_next);

// Whether the matrices are contiguous, of one width and dtype, and `next` begins where `matrix` ends in one storage.
[[nodiscard]] bool follows_in_rows(const at::Tensor& matrix, const at::Tensor& next);
// Whether the matrices have one height, dtype and row stride, and the columns of `next` follow those of `matrix` in one
// storage.
[[nodiscard]] bool follows_in_columns(const at::Tensor& matrix, const at::Tensor& next);

// The matrix that a run of matrices which follow each other makes up; it shares their memory.
[[nodiscard]] at::Tensor joined_rows(std::span<const at::Tensor> matrices);
[[nodiscard]] at::Tensor joined_columns(std::span<const at::Tensor> matrices);

}  // namespace d9d::kernels::detail
