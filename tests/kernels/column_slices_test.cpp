#include "d9d/kernels/device/column_slices.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::kernels::detail {
namespace {

TEST(ColumnSlices, Are_adjacent_in_the_rows_of_one_buffer) {
  const at::Tensor buffer = at::zeros({2, 3, 10});
  EXPECT_TRUE(are_adjacent_columns(buffer.narrow(2, 1, 4), buffer.narrow(2, 5, 2), 1));
  EXPECT_TRUE(are_adjacent_columns(buffer.narrow(2, 0, 6).unflatten(2, {3, 2}),
                                   buffer.narrow(2, 6, 2).unflatten(2, {1, 2}), 2));
}

TEST(ColumnSlices, Are_not_adjacent_elsewhere) {
  const at::Tensor buffer = at::zeros({2, 3, 10});
  const at::Tensor first = buffer.narrow(2, 0, 4);
  EXPECT_FALSE(are_adjacent_columns(first, buffer.narrow(2, 5, 4), 1));                       // a gap
  EXPECT_FALSE(are_adjacent_columns(buffer.narrow(2, 4, 4), first, 1));                       // the other way round
  EXPECT_FALSE(are_adjacent_columns(first, at::zeros({2, 3, 10}).narrow(2, 4, 4), 1));        // another buffer
  EXPECT_FALSE(are_adjacent_columns(first, buffer.narrow(1, 0, 2).narrow(2, 4, 4), 1));       // fewer rows
  EXPECT_FALSE(are_adjacent_columns(buffer.slice(2, 0, 4, 2), buffer.slice(2, 2, 6, 2), 1));  // steps
  EXPECT_FALSE(are_adjacent_columns(at::zeros({2, 3}), at::zeros({2, 3}), 1));                // two tensors
  EXPECT_FALSE(are_adjacent_columns(buffer.unflatten(2, {5, 2}).narrow(2, 0, 2).transpose(2, 3),
                                    buffer.unflatten(2, {5, 2}).narrow(2, 2, 2).transpose(2, 3), 2));
}

TEST(ColumnSlices, Empty_ones_are_adjacent_where_the_models_are) {
  const at::Tensor buffer = at::zeros({2, 3, 12});
  const at::Tensor q = buffer.narrow(2, 0, 6).unflatten(2, {3, 2});
  const at::Tensor k = buffer.narrow(2, 6, 4).unflatten(2, {2, 2});
  const auto [grad_q, grad_k] = empty_column_slices(q, k, 2);
  EXPECT_EQ(grad_q.sizes(), q.sizes());
  EXPECT_EQ(grad_k.sizes(), k.sizes());
  EXPECT_TRUE(are_adjacent_columns(grad_q, grad_k, 2));
  EXPECT_EQ(grad_q.stride(1), 10);
  const auto [grad_k_alone, grad_q_alone] = empty_column_slices(k, q, 2);
  EXPECT_TRUE(grad_k_alone.is_contiguous() && grad_q_alone.is_contiguous());
}

}  // namespace
}  // namespace d9d::kernels::detail
