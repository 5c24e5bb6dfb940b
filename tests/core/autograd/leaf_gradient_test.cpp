#include "d9d/core/autograd/leaf_gradient.h"

#include <array>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"

namespace d9d::leaf_gradient_test {
namespace {

namespace ag = torch::autograd;

// y = x w. In backward the gradient of w is written to its place if there is one, by itself or with that of x.
template <bool is_made_alone>
struct ProductOf : ag::Function<ProductOf<is_made_alone>> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    return x * w;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list grads) {
    const ag::variable_list saved = context->get_saved_variables();
    const std::array reads = {saved[0], grads[0]};
    const auto write = [](std::span<const at::Tensor> tensors, const std::optional<GradientPlace>& place) {
      if (!place) return tensors[0] * tensors[1];
      place->put(tensors[0] * tensors[1]);
      return at::Tensor();
    };
    return {grads[0] * saved[1], is_made_alone ? make_gradient(1, reads, write) : write(reads, gradient_place(1))};
  }
};
using Product = ProductOf<true>;

struct LeafGradient : ::testing::Test {
  at::Tensor x = at::arange(1.0, 4.0);
  at::Tensor w = at::ones({3}).set_requires_grad(true);
  at::Tensor buffer = at::full({3}, 100.0, at::kDouble);
  bool has_values = false;
  int num_arrivals = 0;
  GradientHookHandle hook;

  void keep_in_buffer() {
    hook = on_gradient(w, {.arrived = [this](const at::Tensor&) { ++num_arrivals; },
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

TEST_F(LeafGradient, Goes_to_its_place_if_it_is_made_together_with_others) {
  keep_in_buffer();
  ProductOf<false>::apply(x, w).sum().backward();
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(numbers(buffer), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(num_arrivals, 1);
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

TEST_F(LeafGradient, Goes_to_autograd_again_when_the_handle_has_gone) {
  keep_in_buffer();
  hook.remove();
  Product::apply(x, w).sum().backward();
  EXPECT_EQ(numbers(w.grad()), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(num_arrivals, 0);
}

TEST_F(LeafGradient, Has_one_owner_at_a_time) {
  keep_in_buffer();
  EXPECT_THROW((void)on_gradient(w, {.arrived = [](const at::Tensor&) {}}), StateError);
  Product::apply(x, w).sum().backward();
  EXPECT_EQ(num_arrivals, 1);
  hook.remove();
  keep_in_buffer();
  Product::apply(x, w).sum().backward();
  EXPECT_EQ(num_arrivals, 2);
}

// A user's hook sees the whole gradient of each backward, and its return value is used: as with torch.
TEST_F(LeafGradient, Goes_through_the_hooks_of_a_user_in_every_backward) {
  for (const bool is_kept : {false, true}) {
    w = at::ones({3}).set_requires_grad(true);
    const auto place = [this] { return GradientPlace{buffer, std::exchange(has_values, true)}; };
    const auto take = [&](const at::Tensor& leaf) {
      const at::NoGradGuard no_grad;
      if (const at::Tensor grad = std::exchange(leaf.mutable_grad(), at::Tensor()); grad.defined()) place().put(grad);
    };
    if (is_kept) hook = on_gradient(w, {.arrived = take, .place = place});
    std::vector<double> seen;
    w.register_hook([&](const at::Tensor& grad) {
      seen.push_back(grad.sum().item<double>());
      return grad * 10;
    });
    for (int i = 0; i < 2; ++i) (Product::apply(x, w) + Product::apply(x, w)).sum().backward();
    EXPECT_EQ(seen, (std::vector<double>{12, 12}));
    EXPECT_EQ(numbers(is_kept ? buffer : w.grad()), (std::vector<double>{40, 80, 120}));
  }
}

}  // namespace
}  // namespace d9d::leaf_gradient_test
