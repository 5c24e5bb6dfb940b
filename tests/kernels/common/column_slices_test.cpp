#include "d9d/kernels/common/column_slices.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tests/kernels/common/column_slices_testing.h"
#include "tests/kernels/op_testing.h"

namespace d9d::kernels::detail::column_slices_test {
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

TEST(ColumnSlices, Count_the_columns_before_them) {
  const at::Tensor buffer = at::zeros({2, 3, 12});
  EXPECT_EQ(columns_before(buffer.narrow(2, 10, 2), 1), 10);
  EXPECT_EQ(columns_before(buffer.narrow(2, 4, 6).unflatten(2, {3, 2}), 2), 4);
  EXPECT_EQ(columns_before(buffer.select(0, 1).narrow(0, 1, 2).narrow(1, 4, 6), 1), 4);  // later rows
  EXPECT_EQ(columns_before(buffer.narrow(1, 0, 1).narrow(2, 4, 6), 1), 4);               // rows of two batches
}

TEST(ColumnSlices, Count_none_where_rows_are_not_known) {
  const at::Tensor buffer = at::zeros({2, 3, 12});
  EXPECT_EQ(columns_before(buffer, 1), 0);
  EXPECT_EQ(columns_before(buffer.narrow(2, 0, 4), 1), 0);
  EXPECT_EQ(columns_before(buffer.narrow(1, 0, 2).narrow(2, 4, 4), 1), 0);               // not evenly spaced
  EXPECT_EQ(columns_before(buffer.slice(2, 4, 12, 2), 1), 0);                            // steps
  EXPECT_EQ(columns_before(buffer.select(0, 0).narrow(0, 1, 1).narrow(1, 4, 4), 1), 0);  // one row
  EXPECT_EQ(columns_before(at::zeros({12}).narrow(0, 4, 4).expand({3, 4}), 1), 0);       // of one row, overlapping
  EXPECT_EQ(columns_before(at::zeros({40}).as_strided({3, 4}, {6, 1}, 9), 1), 0);        // from the middle of a row
  EXPECT_EQ(columns_before(buffer.narrow(0, 0, 0).narrow(2, 4, 4), 1), 0);
}

TEST(ColumnSlices, Behind_columns_are_alone_in_their_storage) {
  const at::Tensor v = at::zeros({2, 3, 2, 4});
  const at::Tensor slice = empty_behind_columns(v, 10, 2);
  EXPECT_EQ(slice.sizes(), v.sizes());
  EXPECT_EQ(slice.strides(), at::IntArrayRef({3 * 18, 18, 4, 1}));
  EXPECT_EQ(slice.storage_offset(), 10);
  EXPECT_EQ(slice.storage().nbytes(), 6 * 18 * sizeof(float));
  EXPECT_EQ(columns_before(slice, 2), 10);
  EXPECT_TRUE(is_only_reference(slice));
  EXPECT_TRUE(empty_behind_columns(v, 0, 2).is_contiguous());
  EXPECT_EQ(empty_behind_columns(at::zeros({2, 0, 2, 4}), 10, 2).numel(), 0);
}

TEST(ColumnSlices, Take_the_columns_before_others) {
  const at::Tensor q = at::zeros({2, 3, 4, 2}), k = at::zeros({2, 3, 1, 2}), v = at::zeros({2, 3, 1, 2});
  for (const std::int64_t count : {10, 14}) {
    const at::Tensor grad_v = empty_behind_columns(v, count, 2).fill_(3);
    const auto room = column_slices_before(grad_v, q, k, 2);
    ASSERT_TRUE(room.has_value());
    EXPECT_EQ(room->first.sizes(), q.sizes());
    EXPECT_EQ(room->second.sizes(), k.sizes());
    EXPECT_TRUE(are_adjacent_columns(room->first, room->second, 2));
    EXPECT_TRUE(are_adjacent_columns(room->second, grad_v, 2));
    room->first.fill_(1);
    room->second.fill_(2);
    EXPECT_TRUE(at::equal(grad_v, at::full_like(v, 3)));
    EXPECT_TRUE(at::equal(room->first, at::ones_like(q)));
    EXPECT_FALSE(is_only_reference(grad_v));
  }
}

TEST(ColumnSlices, Take_no_columns_where_there_is_no_room) {
  const at::Tensor q = at::zeros({2, 3, 4, 2}), k = at::zeros({2, 3, 1, 2}), v = at::zeros({2, 3, 1, 2});
  const at::Tensor slice = empty_behind_columns(v, 10, 2);
  ASSERT_TRUE(column_slices_before(slice, q, k, 2).has_value());
  EXPECT_FALSE(column_slices_before(at::zeros_like(v), q, k, 2).has_value());
  EXPECT_FALSE(column_slices_before(empty_behind_columns(v, 8, 2), q, k, 2).has_value());
  EXPECT_FALSE(column_slices_before(at::zeros({2, 3, 12}).narrow(2, 0, 2).unflatten(2, {1, 2}), q, k, 2).has_value());
  const at::Tensor late_rows = at::zeros({10, 8}).narrow(0, 4, 6).narrow(1, 6, 2);  // of 8 columns
  EXPECT_FALSE(column_slices_before(late_rows.unflatten(0, {2, 3}).unflatten(2, {1, 2}), q, k, 2).has_value());
  EXPECT_FALSE(column_slices_before(slice, q.to(at::kDouble), k, 2).has_value());
  EXPECT_FALSE(column_slices_before(slice, q, k.narrow(1, 0, 2), 2).has_value());
  EXPECT_FALSE(column_slices_before(slice.narrow(1, 0, 2), q.narrow(1, 0, 2), k.narrow(1, 0, 2), 2).has_value());
}

// What a backward observed: whether its gradient had a single reference, and room for two columns before it.
struct Told {
  bool is_only_reference = false;
  bool has_room = false;
};

struct Tells : torch::autograd::Function<Tells> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, Told* told) {
    context->saved_data["told"] = reinterpret_cast<std::int64_t>(told);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    auto& told = *reinterpret_cast<Told*>(context->saved_data["told"].toInt());
    told.is_only_reference = is_only_reference(grads[0]);
    const at::Tensor column = at::empty({grads[0].size(0), 1});
    told.has_room = column_slices_before(grads[0], column, column, 1).has_value();
    return {grads[0], {}};
  }
};

class GradientsOfColumnSlices : public ::testing::Test {
 protected:
  [[nodiscard]] static at::Tensor room(const at::Tensor& x, at::Tensor* kept = nullptr) {
    return ::d9d::testing::with_room_in_gradient(x, 2, 1, kept);
  }
  static void run(const at::Tensor& out) { ::d9d::testing::backward({out}, {at::ones_like(out)}); }

  Told told_, other_;
  const at::Tensor x_ = ::d9d::testing::leaf(at::zeros({5, 3}));
  const at::Tensor y_ = Tells::apply(x_, &told_);
};

TEST_F(GradientsOfColumnSlices, Are_the_only_reference_in_the_node_that_gets_them) {
  run(room(y_));
  EXPECT_TRUE(told_.is_only_reference && told_.has_room);
  EXPECT_TRUE(at::equal(x_.grad(), at::ones({5, 3})));
}

TEST_F(GradientsOfColumnSlices, Have_no_room_once_summed) {
  run(room(y_) + room(y_));
  EXPECT_FALSE(told_.has_room);
}

// retain_grad makes LibTorch keep a copy.
TEST_F(GradientsOfColumnSlices, Are_retained_without_their_columns_before) {
  y_.retain_grad();
  run(room(y_));
  EXPECT_EQ(y_.grad().storage().nbytes(), y_.numel() * sizeof(float));
  EXPECT_TRUE(told_.is_only_reference && told_.has_room);
}

TEST_F(GradientsOfColumnSlices, Are_not_the_only_reference_if_asked_for_too) {
  const at::Tensor out = room(y_);
  (void)torch::autograd::grad({out}, {x_, y_}, {at::ones_like(out)});
  EXPECT_TRUE(told_.has_room);
  EXPECT_FALSE(told_.is_only_reference);
}

TEST_F(GradientsOfColumnSlices, Are_not_the_only_reference_if_a_hook_keeps_them) {
  at::Tensor kept;
  y_.register_hook([&](const at::Tensor& grad) { kept = grad; });
  run(room(y_));
  EXPECT_TRUE(told_.has_room);
  EXPECT_FALSE(told_.is_only_reference);
}

TEST_F(GradientsOfColumnSlices, Are_not_the_only_reference_if_another_tensor_has_the_storage) {
  at::Tensor kept;
  run(room(y_, &kept));
  EXPECT_TRUE(told_.has_room);
  EXPECT_FALSE(told_.is_only_reference);
}

TEST_F(GradientsOfColumnSlices, Are_not_the_only_reference_while_a_second_node_has_them) {
  run(room(y_ + Tells::apply(x_, &other_)));
  EXPECT_TRUE(told_.has_room && other_.has_room);
  EXPECT_FALSE(told_.is_only_reference && other_.is_only_reference);
}

}  // namespace
}  // namespace d9d::kernels::detail::column_slices_test
