#include "d9d/core/autograd/deferred_gradients.h"

#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/autograd/leaf_gradient.h"

#include "tests/core/autograd/products.h"
#include "tests/support/compare.h"
#include "tests/support/matrix_products.h"
#include "tests/support/memory_peak.h"

namespace d9d::test::deferred_gradients_test {
namespace {

namespace ag = torch::autograd;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = kProductRows, kWidth = kProductWidth;
constexpr std::int64_t kRowBytes = kRows * kWidth * 8;

TEST(DeferredGradients, Leave_products_of_weights_to_the_second_half_and_nothing_else) {
  const at::Tensor x = input_of(1), first = weight_of(2), second = weight_of(3), third = weight_of(4);
  DeferredGradients deferred({first, second, third});
  const auto forward = [&] { return times(at::tanh(times(x, {first, second})), {third}).square().sum(); };
  for (const bool is_checkpointed : {false, true}) {
    const at::Tensor loss =
        is_checkpointed ? checkpoint([&](const at::Tensor&) { return forward(); }, at::zeros({})) : forward();
    const MatrixProducts products;
    WeightGradients of_weights = deferred.keep([&] { loss.backward(); });
    EXPECT_EQ(products.count(kRows), 0);
    EXPECT_EQ(products.count(kWidth), 3 + (is_checkpointed ? 3 : 0));
    EXPECT_TRUE(x.grad().defined());
    EXPECT_FALSE(first.grad().defined());
    EXPECT_EQ(of_weights.num_products(), 2);
    MatrixProducts::clear();
    of_weights.run();
    EXPECT_EQ(products.count(kRows), 3);
    EXPECT_EQ(products.count(), 3);
    of_weights.run();
    EXPECT_EQ(products.count(), 3);
    for (const at::Tensor& weight : {first, second, third}) weight.mutable_grad() = at::Tensor();
  }
}

TEST(DeferredGradients, Are_freed_one_by_one_as_they_run) {
  const at::Tensor first = weight_of(1), second = weight_of(2);
  for (const at::Tensor& weight : {first, second}) weight.mutable_grad() = at::zeros_like(weight);
  DeferredGradients deferred({first, second});
  std::int64_t live_at_arrival = 0;
  const MemoryPeak memory;
  const GradientHookHandle hook =
      on_gradient(first, {.arrived = [&](const at::Tensor&) { live_at_arrival = memory.live_bytes(); }});
  WeightGradients of_weights;
  {
    const at::Tensor x = input_of(1), y = times(at::tanh(times(x, {first})), {second});
    of_weights = deferred.keep([&] { y.square().sum().backward(); });
  }
  EXPECT_EQ(memory.live_bytes(), 4 * kRowBytes);  // of each product what came in, and the gradient of what went out
  of_weights.run();
  EXPECT_EQ(live_at_arrival, 2 * kRowBytes);  // the second weight's product ran first
  EXPECT_EQ(memory.live_bytes(), 0);
}

TEST(DeferredGradients, Arrive_once_and_whole_in_the_second_half) {
  const at::Tensor shared = weight_of(1), scale = numbers({kWidth}, 2).set_requires_grad(true), idle = weight_of(3);
  Owner of_shared(shared, true), of_scale(scale, true), of_idle(idle, true);
  DeferredGradients deferred({shared, scale, idle});
  const auto run = [&](bool is_split) {
    const at::Tensor x = input_of(4);
    const at::Tensor y = times(at::tanh(times(x, {shared}) * scale), {shared}).mm(shared);
    WeightGradients of_weights;
    if (is_split) {
      of_weights = deferred.keep([&] { y.sum().backward(); });
      EXPECT_EQ(of_shared.num_arrivals + of_scale.num_arrivals, 2);  // of the whole backward before
      EXPECT_FALSE(shared.grad().defined());
    } else {
      y.sum().backward();
    }
    of_weights.run();
  };
  run(/*is_split=*/false);
  const at::Tensor whole = of_shared.buffer.clone();
  for (Owner* const owner : {&of_shared, &of_scale}) owner->has_values = false;
  run(/*is_split=*/true);
  EXPECT_EQ(of_shared.num_arrivals, 2);
  EXPECT_EQ(of_scale.num_arrivals, 2);
  EXPECT_EQ(of_idle.num_arrivals, 0);
  EXPECT_TRUE(at::equal(of_shared.at_arrival, of_shared.buffer));
  expect_close("shared", of_shared.buffer, whole, tolerance("fp64"));
}

TEST(DeferredGradients, A_whole_backward_between_the_halves_does_not_wait) {
  const at::Tensor weight = weight_of(1);
  Owner owner(weight, true);
  DeferredGradients deferred({weight});
  const auto backward = [&](double seed) { times(input_of(seed), {weight}).sum().backward(); };
  WeightGradients of_weights = deferred.keep([&] { backward(2); });
  backward(3);
  EXPECT_EQ(owner.num_arrivals, 1);
  of_weights.run();
  EXPECT_EQ(owner.num_arrivals, 2);
  const at::Tensor expected = (input_of(2) + input_of(3)).detach().t().mm(at::ones({kRows, kWidth}, at::kDouble));
  expect_close("weight", owner.buffer, expected, tolerance("fp64"));
}

// A user sees whole gradients, and may replace them; a user's post-accumulation hook is called by autograd alone.
TEST(DeferredGradients, Weights_with_hooks_of_a_user_do_not_wait) {
  const at::Tensor seen = weight_of(1), after = weight_of(2);
  struct Count final : ag::PostAccumulateGradHook {
    explicit Count(int& number) : count(number) {}
    void operator()(const ag::Variable& leaf) override { count += leaf.grad().defined() ? 1 : 100; }
    int& count;
  };
  int num_seen = 0, num_after = 0;
  seen.register_hook([&](const at::Tensor& grad) {
    ++num_seen;
    return grad * 10;
  });
  ag::impl::set_post_acc_grad_hooks(after, std::make_unique<Count>(num_after));
  {
    DeferredGradients deferred({seen, after});
    const at::Tensor loss = (times(input_of(3), {seen}) + times(input_of(3), {after})).sum();
    WeightGradients of_weights = deferred.keep([&] { loss.backward(); });
    EXPECT_EQ(of_weights.num_products(), 0);
    EXPECT_TRUE(at::equal(seen.grad(), after.grad() * 10));
  }
  EXPECT_EQ(num_seen, 1);
  EXPECT_EQ(num_after, 1);
  EXPECT_NE(ag::impl::post_acc_grad_hooks(after), nullptr);
}

TEST(DeferredGradients, Are_returned_to_a_caller_that_asks_for_them) {
  const at::Tensor weight = weight_of(1), x = input_of(2);
  DeferredGradients deferred({weight});
  std::vector<at::Tensor> asked;
  WeightGradients of_weights = deferred.keep([&] { asked = ag::grad({times(x, {weight}).sum()}, {weight}); });
  EXPECT_EQ(of_weights.num_products(), 0);
  EXPECT_TRUE(at::equal(asked[0], x.detach().t().mm(at::ones({kRows, kWidth}, at::kDouble))));
  EXPECT_FALSE(weight.grad().defined());
}

// Autograd makes the gradient of y = x w + b, of a b as large as y, the .grad() of b itself, and adds to it later.
TEST(DeferredGradients, Multiply_what_they_kept_even_if_autograd_took_it_over) {
  const at::Tensor weight = weight_of(1), bias = numbers({kRows, kWidth}, 2).set_requires_grad(true);
  const auto run = [&](bool is_split) {
    DeferredGradients deferred({weight, bias});
    std::vector<WeightGradients> of_weights;
    for (const double seed : {3.0, 4.0}) {
      const at::Tensor y = times(input_of(seed), {weight}) + bias.view({1, kRows, kWidth}).squeeze(0);
      const auto backward = [&] { y.square().sum().backward(); };
      is_split ? of_weights.push_back(deferred.keep(backward)) : backward();
    }
    for (WeightGradients& each : of_weights) each.run();
    const at::Tensor result = weight.grad();
    for (const at::Tensor& leaf : {weight, bias}) leaf.mutable_grad() = at::Tensor();
    return result;
  };
  const at::Tensor whole = run(false);
  EXPECT_TRUE(at::equal(run(true), whole));
}

TEST(DeferredGradients, Of_an_operator_that_returns_a_sparse_one_are_autograds) {
  const at::Tensor weight = weight_of(1), ids = at::tensor({3, 0, 3}, at::kLong);
  DeferredGradients deferred({weight});
  const auto lookup = [&] { return at::embedding(weight, ids, -1, /*scale_grad_by_freq=*/false, /*sparse=*/true); };
  WeightGradients of_weights = deferred.keep([&] { lookup().sum().backward(); });
  of_weights.run();
  EXPECT_EQ(of_weights.num_products(), 0);
  EXPECT_TRUE(at::equal(weight.grad().to_dense().sum(1), at::tensor({1, 0, 0, 2, 0}, at::kDouble) * kWidth));
}

TEST(DeferredGradients, Of_something_that_was_modified_meanwhile_are_refused) {
  const at::Tensor weight = weight_of(1), x = numbers({kRows, kWidth}, 2);
  DeferredGradients deferred({weight});
  WeightGradients of_weights = deferred.keep([&] { times(x, {weight}).sum().backward(); });
  x.mul_(2);
  try {
    of_weights.run();
    FAIL() << "expected a refusal";
  } catch (const StateError& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected tensor 0 of [7, 5], from which a weight's gradient is computed"));
  }
}

TEST(DeferredGradients, Leave_nothing_behind_after_an_exception) {
  const at::Tensor weight = weight_of(1);
  Owner owner(weight, true);
  const auto backward = [&](double factor, const std::function<void()>& then) {
    times(input_of(2), {weight}).mul(factor).sum().backward();
    then();
  };
  const MemoryPeak memory;
  DeferredGradients deferred({weight});
  const auto fail = [] { throw StateError("the stage breaks"); };
  EXPECT_THROW((void)deferred.keep([&] { backward(1, fail); }), StateError);
  EXPECT_EQ(memory.live_bytes(), 0);
  backward(1, [] {});  // does not wait any more
  EXPECT_EQ(owner.num_arrivals, 1);
  const at::Tensor once = owner.buffer.clone();
  {
    const WeightGradients dropped = deferred.keep([&] { backward(1, [] {}); });
  }
  WeightGradients broken = deferred.keep([&] { backward(std::numeric_limits<double>::quiet_NaN(), [] {}); });
  try {
    broken.run();
    FAIL() << "expected the product's exception";
  } catch (const StateError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the product breaks (in backward of "));
  }
  EXPECT_TRUE(at::equal(owner.buffer, once));
  EXPECT_EQ(owner.num_arrivals, 1);
  WeightGradients of_weights = deferred.keep([&] { backward(1, [] {}); });
  of_weights.run();
  EXPECT_TRUE(at::equal(owner.buffer, once * 2));
}

TEST(DeferredGradients, Take_their_hooks_off_again) {
  const at::Tensor weight = weight_of(1), owned = weight_of(2);
  Owner owner(owned, true);
  {
    const DeferredGradients deferred({weight, owned});
    const DeferredGradients second({weight});  // a weight of two stages, which waits for the first alone
  }
  EXPECT_EQ(ag::impl::post_acc_grad_hooks(weight), nullptr);
  EXPECT_NE(ag::impl::post_acc_grad_hooks(owned), nullptr);
  {
    const DeferredGradients deferred({owned});
    owner.hook.remove();
    times(input_of(3), {owned}).sum().backward();
    EXPECT_TRUE(owned.grad().defined());
  }
  EXPECT_EQ(ag::impl::post_acc_grad_hooks(owned), nullptr);
}

}  // namespace
}  // namespace d9d::test::deferred_gradients_test
