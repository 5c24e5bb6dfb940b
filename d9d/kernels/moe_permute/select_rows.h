// Some rows of a matrix, and the matrix that has given rows in their places: how a layer computes some tokens only.
//
// Example
//   const at::Tensor some = select_rows(x, rows);                       // rows [2] = {0, 3}: [2, H]
//   at::Tensor y = place_rows(f(some), rows, /*num_rows=*/x.size(0));   // [T, H], zero in the others
//
// Legend   T rows of the whole matrix, n selected rows, H features
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// x [T, H], rows [n] int64: distinct, each in [0, T) -> [n, H]. Differentiable in x; each gradient is copied to its
// row, not added, so it is the same bit for bit. Does not synchronise with the device.
[[nodiscard]] at::Tensor select_rows(const at::Tensor& x, const at::Tensor& rows);

// values [n, H], rows as above -> [num_rows, H] in the dtype of values: values[i] in row rows[i], zero in the other
// rows. Differentiable in values. Does not synchronise with the device.
[[nodiscard]] at::Tensor place_rows(const at::Tensor& values, const at::Tensor& rows, std::int64_t num_rows);

}  // namespace d9d::kernels
