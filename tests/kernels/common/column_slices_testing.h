// What the tests of gradients beside each other share.
//
// Example
//   const at::Tensor out = with_room_in_gradient(v, 12, 2);   // backward: empty_behind_columns of 12, filled
#pragma once

#include <ATen/ATen.h>

namespace d9d::testing {

// A copy of x whose backward gives x its gradient behind `count` columns. `kept`, if not null, becomes a view of the
// whole buffer in that backward, filled with sevens before, and outlives it.
[[nodiscard]] at::Tensor with_room_in_gradient(const at::Tensor& x, std::int64_t count, std::int64_t num_column_dims,
                                               at::Tensor* kept = nullptr);

}  // namespace d9d::testing
