// Shared by the tests of gradients that are adjacent in memory.
//
// Example
//   const at::Tensor out = with_room_in_gradient(v, 12, 2);   // backward: empty_behind_columns of 12, filled
#pragma once

#include <ATen/ATen.h>

namespace d9d::testing {

// A copy of x whose backward writes the gradient of x after `count` columns. If `kept` is not null, that backward sets
// it to a view of the whole buffer, which it fills with sevens first; the view keeps the buffer alive.
[[nodiscard]] at::Tensor with_room_in_gradient(const at::Tensor& x, std::int64_t count, std::int64_t num_column_dims,
                                               at::Tensor* kept = nullptr);

}  // namespace d9d::testing
