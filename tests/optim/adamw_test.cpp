#include "d9d/optim/adamw.h"

#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/optim/copy_state.h"
#include "tests/support/ranks.h"

namespace d9d::adamw_test {
namespace {

at::Tensor parameter(const std::vector<double>& values, at::ScalarType dtype = at::kDouble) {
  return at::tensor(values, at::kDouble).to(dtype).requires_grad_();
}

void set_grad(const at::Tensor& leaf, const at::Tensor& grad) { leaf.mutable_grad() = grad; }

// Relative to the largest expected magnitude.
double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor wide = expected.detach().to(at::kDouble);
  return ((actual.detach().to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>();
}

TEST(AdamW, Equals_the_golden_step) {
  const at::Tensor leaf = parameter({1.0}, at::kFloat);
  AdamW optimizer({{"p", leaf}}, {.lr = 1e-3, .weight_decay = 0.1});
  auto state = optimizer.state_dict();
  state.at("p.step").local.fill_(4);
  state.at("p.exp_avg").local.fill_(0.1);
  state.at("p.exp_avg_sq").local.fill_(0.2);
  set_grad(leaf, at::full({1}, 0.5));
  optimizer.step(1e-3);
  EXPECT_NEAR(state.at("p.exp_avg").local.item<double>(), 0.14, 1e-7);
  EXPECT_NEAR(state.at("p.exp_avg_sq").local.item<double>(), 0.20005, 1e-7);
  EXPECT_NEAR(leaf.item<double>(), 0.999846006, 1e-7);
}

TEST(AdamW, Steps_strided_tensors_as_contiguous_ones) {
  const at::Tensor contiguous = parameter({1, 2, 3, 4, 5, 6});
  const at::Tensor strided = at::empty_strided({6}, {2}, at::kDouble).copy_(contiguous.detach()).requires_grad_();
  for (const at::Tensor& leaf : {contiguous, strided}) {
    AdamW optimizer({{"p", leaf}}, {.lr = 0.1, .amsgrad = true});
    for (const double grad : {1.0, -3.0, 0.5}) {
      set_grad(leaf, at::full({6}, grad, at::kDouble));
      optimizer.step(0.1);
    }
  }
  EXPECT_LT(relative_error(strided, contiguous), 1e-15);
}

TEST(AdamW, Keeps_fp32_moments_of_bf16_parameters) {
  for (const at::ScalarType grad_dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor narrow = parameter({1.0, -2.0}, at::kBFloat16);
    const at::Tensor wide = parameter({1.0, -2.0}, at::kFloat);
    AdamW optimizer({{"p", narrow}}, {.lr = 0.5});
    AdamW expected({{"p", wide}}, {.lr = 0.5});
    set_grad(narrow, at::full({2}, 0.25, grad_dtype));
    set_grad(wide, at::full({2}, 0.25));
    optimizer.step(0.5);
    expected.step(0.5);
    EXPECT_TRUE(at::equal(narrow, wide.to(at::kBFloat16)));
    EXPECT_TRUE(at::equal(optimizer.state_dict().at("p.exp_avg").local, expected.state_dict().at("p.exp_avg").local));
  }
}

TEST(AdamW, Multiplies_gradients_by_the_scale) {
  const at::Tensor scaled = parameter({1.0, -2.0, 3.0});
  const at::Tensor direct = parameter({1.0, -2.0, 3.0});
  const at::Tensor grad = at::tensor({0.3, -0.7, 2.0}, at::kDouble);
  set_grad(scaled, grad.clone());
  set_grad(direct, grad * 0.125);
  AdamW({{"p", scaled}}, {.eps = 0.1}).step(0.1, at::scalar_tensor(0.125, at::kDouble));
  AdamW({{"p", direct}}, {.eps = 0.1}).step(0.1);
  EXPECT_TRUE(at::equal(scaled, direct));
  EXPECT_TRUE(at::equal(scaled.grad(), grad));
}

TEST(AdamW, Goes_on_after_a_forgotten_step_as_if_it_had_not_been) {
  const at::Tensor first = parameter({1.0, -2.0}), second = parameter({1.0, -2.0}), idle = parameter({3.0});
  AdamW disturbed({{"p", first}, {"idle", idle}}, {.weight_decay = 0.5}),
      expected({{"p", second}}, {.weight_decay = 0.5});
  for (const double grad : {0.3, -0.7, 0.2}) {
    set_grad(first, at::full({2}, std::numeric_limits<double>::quiet_NaN(), at::kDouble));
    disturbed.step(0.1, at::full({}, std::numeric_limits<double>::quiet_NaN(), at::kDouble));
    disturbed.forget_step();
    for (const auto& [leaf, optimizer] : {std::pair(first, &disturbed), std::pair(second, &expected)}) {
      set_grad(leaf, at::full({2}, grad, at::kDouble));
      optimizer->step(0.1);
    }
    EXPECT_TRUE(at::equal(first, second));
  }
  EXPECT_EQ(disturbed.state_dict().at("p.step").local.item<std::int64_t>(), 3);
  EXPECT_EQ(disturbed.state_dict().at("idle.step").local.item<std::int64_t>(), 0);
}

TEST(AdamW, Leaves_parameters_without_gradient_alone) {
  const at::Tensor trained = parameter({1.0});
  const at::Tensor idle = parameter({1.0});
  AdamW optimizer({{"trained", trained}, {"idle", idle}}, {.lr = 0.1});
  set_grad(trained, at::ones({1}, at::kDouble));
  optimizer.step(0.1);
  EXPECT_EQ(idle.item<double>(), 1.0);
  EXPECT_EQ(optimizer.state_dict().at("idle.step").local.item<std::int64_t>(), 0);
  EXPECT_EQ(optimizer.state_dict().at("trained.step").local.item<std::int64_t>(), 1);
}

TEST(AdamW, Steps_empty_parameters) {
  const at::Tensor empty = parameter({});
  AdamW optimizer({{"p", empty}}, {});
  set_grad(empty, at::zeros_like(empty));
  EXPECT_NO_THROW(optimizer.step(0.1));
}

TEST(AdamW, Marks_its_writes_for_autograd) {
  const at::Tensor leaf = parameter({1.0});
  const at::Tensor loss = leaf * leaf;
  AdamW optimizer({{"p", leaf}}, {});
  set_grad(leaf, at::ones({1}, at::kDouble));
  optimizer.step(0.1);
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(AdamW, Continues_bit_equal_from_state_that_is_filled_in) {
  const auto step = [](const at::Tensor& leaf, AdamW& optimizer, double grad) {
    set_grad(leaf, at::full_like(leaf, grad));
    optimizer.step(0.1);
  };
  const at::Tensor first = parameter({1.0, 2.0}, at::kFloat);
  AdamW saved({{"p", first}}, {.amsgrad = true});
  step(first, saved, 0.3);
  const at::Tensor second = first.detach().clone().requires_grad_();
  AdamW loaded({{"p", second}}, {.amsgrad = true});
  test::copy_state(saved, loaded);
  step(first, saved, -0.1);
  step(second, loaded, -0.1);
  EXPECT_TRUE(at::equal(first, second));
  EXPECT_THAT(saved.state_dict(), ::testing::SizeIs(4));
}

TEST(AdamW, Says_how_its_state_lies_over_the_ranks) {
  const DeviceMesh mesh("ranks", {{"shard", 2}}, test::lone_rank(1, 2));
  const NamedParameter half{.name = "p",
                            .tensor = parameter({1.0, 2.0}, at::kFloat),
                            .global_shape = {4},
                            .mesh = mesh,
                            .placements = {Shard{0}}};
  const auto state = AdamW({half}, {.amsgrad = true}).state_dict();
  for (const char* const name : {"p.exp_avg", "p.exp_avg_sq", "p.max_exp_avg_sq"}) {
    EXPECT_EQ(state.at(name).global_shape, std::vector<std::int64_t>{4}) << name;
    EXPECT_EQ(state.at(name).placements, Placements{Shard{0}}) << name;
    EXPECT_EQ(state.at(name).mesh, mesh) << name;
  }
  EXPECT_TRUE(state.at("p.step").mesh.axes().empty());
}

TEST(AdamW, Refuses_options_and_parameters_that_break_a_rule) {
  const at::Tensor leaf = parameter({1.0});
  EXPECT_THROW(AdamW({{"p", leaf}}, {.lr = -1}), ConfigError);
  EXPECT_THROW(AdamW({{"p", leaf}}, {.betas = {0.9, 1.0}}), ConfigError);
  EXPECT_THROW(AdamW({{"p", leaf}}, {.eps = -1}), ConfigError);
  EXPECT_THROW(AdamW({{"p", leaf}}, {.weight_decay = -1}), ConfigError);
  EXPECT_THROW(AdamW({{"p", leaf}, {"p", leaf}}, {}), ConfigError);
  EXPECT_THROW(AdamW({{"p", at::zeros({2}, at::kLong)}}, {}), ConfigError);
  EXPECT_THROW(AdamW({{"p", leaf * 2}}, {}), ConfigError);
  EXPECT_THROW(AdamW({{"p", leaf}}, {}).step(-0.1), ConfigError);
}

}  // namespace
}  // namespace d9d::adamw_test
