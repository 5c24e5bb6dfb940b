// What holds for every optimiser that a configuration can name.
#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/optim/build_optimizer.h"

#include "tests/optim/copy_state.h"
#include "tests/support/ranks.h"

namespace d9d::every_optimizer_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const std::vector<OptimizerConfig>& all() {
  static const std::vector<OptimizerConfig> configs = {
      AdamWConfig{.lr = 0.1, .weight_decay = 0.5, .amsgrad = true},
      AdamConfig{.lr = 0.1, .weight_decay = 0.5},
      SgdConfig{.lr = 0.1, .weight_decay = 0.5},
      SgdConfig{.lr = 0.1, .momentum = 0.9, .dampening = 0.5},
      StochasticAdamWConfig{.lr = 0.1, .weight_decay = 0.5},
      LionConfig{.lr = 0.1, .weight_decay = 0.5},
      MuonConfig{.lr = 0.1, .adamw = {.weight_decay = 0.5}},
      AdamWConfig{.lr = 0.1, .groups = {{.group = {.name = "p", .parameters = "p", .lr_factor = 0.5}}}}};
  return configs;
}

at::Tensor leaf(const std::vector<double>& values, at::ScalarType dtype = at::kDouble) {
  return at::tensor(values, at::kDouble).to(dtype).requires_grad_();
}

void step(Optimizer& optimizer, const at::Tensor& parameter, double grad, double scale = 1.0) {
  parameter.mutable_grad() = at::full_like(parameter.detach(), grad);
  optimizer.step(optimizer.learning_rate(), at::full({}, scale, at::kDouble));
}

TEST(EveryOptimizer, Goes_on_after_a_forgotten_step_as_if_it_had_not_been) {
  for (const OptimizerConfig& config : all()) {
    const at::Tensor first = leaf({1.0, -2.0}), second = leaf({1.0, -2.0});
    Optimizer disturbed = build_optimizer(config, {{"p", first}}), expected = build_optimizer(config, {{"p", second}});
    ASSERT_TRUE(disturbed.scales_gradients());
    for (const double grad : {0.3, -0.7, 0.2}) {
      step(disturbed, first, kNaN, kNaN);
      disturbed.forget_step();
      step(disturbed, first, grad);
      step(expected, second, grad);
      EXPECT_TRUE(at::equal(first, second));
    }
    const auto state = disturbed.state_dict(), expected_state = expected.state_dict();
    for (const auto& [name, tensor] : state)
      EXPECT_TRUE(at::equal(tensor.local, expected_state.at(name).local)) << name;
  }
}

TEST(EveryOptimizer, Multiplies_gradients_by_the_scale_as_it_reads_them) {
  for (const OptimizerConfig& config : all()) {
    const at::Tensor scaled = leaf({1.0, -2.0, 3.0}), direct = leaf({1.0, -2.0, 3.0});
    Optimizer by_scale = build_optimizer(config, {{"p", scaled}}), plain = build_optimizer(config, {{"p", direct}});
    step(by_scale, scaled, 2.0, 0.125);
    step(plain, direct, 0.25);
    EXPECT_TRUE(at::equal(scaled, direct));
    EXPECT_TRUE(at::equal(scaled.grad(), at::full({3}, 2.0, at::kDouble)));
  }
}

TEST(EveryOptimizer, Leaves_parameters_without_gradient_and_empty_ones_alone) {
  for (const OptimizerConfig& config : all()) {
    const at::Tensor trained = leaf({1.0}), idle = leaf({1.0}), empty = leaf({});
    Optimizer optimizer = build_optimizer(config, {{"p", trained}, {"idle", idle}, {"empty", empty}});
    empty.mutable_grad() = at::zeros_like(empty.detach());
    step(optimizer, trained, 1.0);
    EXPECT_NE(trained.item<double>(), 1.0);
    EXPECT_EQ(idle.item<double>(), 1.0);
  }
}

// Two steps of one tensor would be taken, from two states.
TEST(EveryOptimizer, Refuses_a_tensor_under_two_names) {
  for (const OptimizerConfig& config : all()) {
    const at::Tensor shared = leaf({1.0, 2.0}), view = shared.detach().requires_grad_();
    for (const at::Tensor& other : {shared, view}) {
      EXPECT_THAT(
          [&] {
            (void)build_optimizer(config, {{"p", shared}, {"q", other}});
          },
          ThrowsMessage<ConfigError>(HasSubstr("one as 'p' and 'q'")));
    }
    EXPECT_NO_THROW((void)build_optimizer(config, {{"p", leaf({})}, {"q", leaf({})}}));
  }
}

TEST(EveryOptimizer, Marks_its_writes_for_autograd) {
  for (const OptimizerConfig& config : all()) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const at::Tensor parameter = leaf({1.0}, dtype);
      const at::Tensor loss = parameter * parameter;
      Optimizer optimizer = build_optimizer(config, {{"p", parameter}});
      step(optimizer, parameter, 1.0);
      EXPECT_THROW(loss.backward(), c10::Error);
    }
  }
}

TEST(EveryOptimizer, Continues_bit_equal_from_state_that_is_filled_in) {
  for (const OptimizerConfig& config : all()) {
    const at::Tensor first = leaf({1.0, 2.0}, at::kFloat);
    Optimizer saved = build_optimizer(config, {{"p", first}});
    step(saved, first, 0.3);
    const at::Tensor second = first.detach().clone().requires_grad_();
    Optimizer loaded = build_optimizer(config, {{"p", second}});
    test::copy_state(saved, loaded);
    for (const double grad : {-0.1, 0.6}) {
      step(saved, first, grad);
      step(loaded, second, grad);
    }
    EXPECT_TRUE(at::equal(first, second));
  }
}

TEST(EveryOptimizer, Says_how_its_state_lies_over_the_ranks) {
  const DeviceMesh mesh("ranks", {{"shard", 2}}, test::lone_rank(1, 2));
  for (const OptimizerConfig& config : all()) {
    const NamedParameter half{.name = "p",
                              .tensor = leaf({1.0, 2.0}, at::kFloat),
                              .global_shape = {4},
                              .mesh = mesh,
                              .placements = {Shard{0}}};
    for (const auto& [name, entry] : build_optimizer(config, {half}).state_dict()) {
      if (name == "p.step" || name == "rounding_seed") continue;
      EXPECT_EQ(entry.global_shape, std::vector<std::int64_t>{4}) << name;
      EXPECT_EQ(entry.placements, Placements{Shard{0}}) << name;
    }
  }
}

TEST(EveryOptimizer, Steps_strided_and_half_precision_tensors) {
  for (const OptimizerConfig& config : all()) {
    const at::Tensor contiguous = leaf({1, 2, 3, 4});
    const at::Tensor strided = at::empty_strided({4}, {2}, at::kDouble).copy_(contiguous.detach()).requires_grad_();
    Optimizer first = build_optimizer(config, {{"p", contiguous}}), second = build_optimizer(config, {{"p", strided}});
    for (const double grad : {1.0, -3.0, 0.5}) {
      step(first, contiguous, grad);
      step(second, strided, grad);
    }
    EXPECT_TRUE(at::allclose(strided, contiguous, /*rtol=*/1e-14));
    if (std::holds_alternative<StochasticAdamWConfig>(config)) continue;
    const at::Tensor half = leaf({1, 2}, at::kHalf);
    Optimizer third = build_optimizer(config, {{"p", half}});
    step(third, half, 1.0);
    EXPECT_LT(half[0].item<double>(), 1.0);
  }
}

TEST(EveryOptimizer, Keeps_state_of_bf16_parameters_in_fp32) {
  for (const OptimizerConfig& config : all()) {
    const at::Tensor narrow = leaf({1.0, -2.0}, at::kBFloat16);
    for (const auto& [name, entry] : build_optimizer(config, {{"p", narrow}}).state_dict()) {
      if (entry.local.is_floating_point()) {
        EXPECT_EQ(entry.local.scalar_type(), at::kFloat) << name;
      }
    }
  }
}

TEST(EveryOptimizer, Refuses_what_breaks_a_rule) {
  const at::Tensor parameter = leaf({1.0});
  for (OptimizerConfig config : all()) {
    EXPECT_THROW((void)build_optimizer(config, {{"p", parameter}, {"p", parameter}}), ConfigError);
    EXPECT_THROW((void)build_optimizer(config, {{"p", at::zeros({2}, at::kLong)}}), ConfigError);
    EXPECT_THROW((void)build_optimizer(config, {{"p", parameter * 2}}), ConfigError);
    EXPECT_THROW(build_optimizer(config, {{"p", parameter}}).step(-0.1), ConfigError);
    std::visit([](auto& record) { record.lr = -1; }, config);
    EXPECT_THROW((void)build_optimizer(config, {{"p", parameter}}), ConfigError);
  }
}

TEST(EveryOptimizer, Names_the_rates_of_its_groups) {
  using ::testing::ElementsAre;
  for (OptimizerConfig config : all()) {
    std::visit([](auto& record) { record.groups = {{.group = {.name = "p", .parameters = "p", .lr_factor = 0.25}}}; },
               config);
    EXPECT_THAT(build_optimizer(config, {}).rate_factors(),
                ElementsAre(std::pair("default", 1.0), std::pair("p", 0.25)));
  }
}

}  // namespace
}  // namespace d9d::every_optimizer_test
