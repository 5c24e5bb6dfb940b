// Matrices that lie in one buffer so that they are parts of a larger one.
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

// Splits [0, count) where `joins_next(i)` is false: i and i + 1 are in one run if it is true.
[[nodiscard]] std::vector<Run> runs(std::size_t count, const std::function<bool(std::size_t i)>& joins_next);

// Contiguous matrices of one width and dtype, `next` right behind `matrix` in one storage.
[[nodiscard]] bool follows_in_rows(const at::Tensor& matrix, const at::Tensor& next);
// Matrices of one height, dtype and distance of rows, `next` right of `matrix` in one storage.
[[nodiscard]] bool follows_in_columns(const at::Tensor& matrix, const at::Tensor& next);

// The whole, an alias: of a run of matrices that follow each other.
[[nodiscard]] at::Tensor joined_rows(std::span<const at::Tensor> matrices);
[[nodiscard]] at::Tensor joined_columns(std::span<const at::Tensor> matrices);

}  // namespace d9d::kernels::detail
