#include "d9d/core/autograd/leaf_gradient.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

namespace d9d {
namespace {

namespace ag = torch::autograd;

// y = x w; in backward the gradient of w goes to its place where there is one.
struct Product : ag::Function<Product> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    return x * w;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list grads) {
    const ag::variable_list saved = context->get_saved_variables();
    const at::Tensor grad = grads[0] * saved[0];
    const auto place = gradient_place(1);
    if (!place) return {grads[0] * saved[1], grad};
    place->has_values ? place->tensor.add_(grad) : place->tensor.copy_(grad);
    return {grads[0] * saved[1], at::Tensor()};
  }
};

struct LeafGradient : ::testing::Test {
  at::Tensor x = at::arange(1.0, 4.0);
  at::Tensor w = at::ones({3}).set_requires_grad(true);
  at::Tensor buffer = at::full({3}, 100.0, at::kDouble);
  bool has_values = false;
  int num_arrivals = 0;

  void keep_in_buffer() {
    on_gradient(w, {.arrived = [this](const at::Tensor&) { ++num_arrivals; },
                    .place =
                        [this] {
                          return GradientPlace{buffer, std::exchange(has_values, true)};
                        }});
  }
  [[nodiscard]] static std::vector<double> numbers(const at::Tensor& tensor) {
    const at::Tensor wide = tensor.to(at::kDouble).contiguous();
    return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
  }
};

TEST_F(LeafGradient, Goes_to_its_place_and_arrives_once_a_backward) {
  keep_in_buffer();
  Product::apply(x, w).sum().backward();
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(numbers(buffer), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(num_arrivals, 1);
  (Product::apply(x, w) + Product::apply(x, w)).sum().backward();
  EXPECT_EQ(numbers(buffer), (std::vector<double>{3, 6, 9}));
  EXPECT_EQ(num_arrivals, 2);
}

TEST_F(LeafGradient, Is_returned_where_nothing_keeps_it) {
  Product::apply(x, w).sum().backward();
  EXPECT_EQ(numbers(w.grad()), (std::vector<double>{1, 2, 3}));
}

TEST_F(LeafGradient, Is_added_to_a_gradient_that_is_there) {
  Product::apply(x, w).sum().backward();
  const at::Tensor first = w.grad();
  Product::apply(x, w).sum().backward();
  EXPECT_TRUE(first.is_same(w.grad()));
  EXPECT_EQ(numbers(w.grad()), (std::vector<double>{2, 4, 6}));
}

TEST_F(LeafGradient, Is_returned_to_a_caller_that_asks_for_it) {
  keep_in_buffer();
  const auto grads = ag::grad({Product::apply(x, w).sum()}, {w});
  EXPECT_EQ(numbers(grads[0]), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(numbers(buffer), (std::vector<double>{100, 100, 100}));
}

TEST_F(LeafGradient, Goes_to_its_place_when_backward_is_asked_for_this_leaf) {
  keep_in_buffer();
  Product::apply(x, w).sum().backward({}, std::nullopt, false, std::vector<at::Tensor>{w});
  EXPECT_EQ(numbers(buffer), (std::vector<double>{1, 2, 3}));
}

TEST_F(LeafGradient, Of_an_input_that_is_no_leaf_is_returned) {
  keep_in_buffer();
  Product::apply(x, w * 2).sum().backward();
  EXPECT_EQ(numbers(w.grad()), (std::vector<double>{2, 4, 6}));
  EXPECT_EQ(num_arrivals, 1);
}

}  // namespace
}  // namespace d9d
