#include "d9d/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/optim/adamw.h"
#include "d9d/optim/build_optimizer.h"
#include "d9d/optim/stochastic_adamw.h"

namespace d9d::optimizer_test {
namespace {

// An optimiser from outside the library, without a base class.
class SignDescent {
 public:
  explicit SignDescent(at::Tensor parameter) : parameter_(std::move(parameter)) {}
  double learning_rate() const { return 0.5; }
  void step(double learning_rate) {
    const at::NoGradGuard no_grad;
    parameter_.sub_(parameter_.grad().sign(), learning_rate);
  }
  std::map<std::string, DTensor> state_dict() const { return {{"num_steps", whole_dtensor(num_steps_)}}; }

 private:
  at::Tensor parameter_;
  at::Tensor num_steps_ = at::zeros({}, at::kLong);
};

struct LacksState {
  double learning_rate() const;
  void step(double learning_rate);
};

static_assert(OptimizerProtocol<SignDescent>);
static_assert(OptimizerProtocol<Optimizer>);
static_assert(!OptimizerProtocol<LacksState>);
static_assert(ScalesGradients<AdamW> && ScalesGradients<StochasticAdamW> && !ScalesGradients<SignDescent>);

TEST(Optimizer, Holds_a_class_from_outside_the_library) {
  const at::Tensor parameter = at::ones({2}).requires_grad_();
  Optimizer optimizer{SignDescent(parameter)};
  (parameter * at::tensor({3.0F, -2.0F})).sum().backward();
  optimizer.step(optimizer.learning_rate());
  EXPECT_TRUE(at::equal(parameter, at::tensor({0.5F, 1.5F})));
  optimizer.state_dict().at("num_steps").local.fill_(7);
  EXPECT_EQ(optimizer.state_dict().at("num_steps").local.item<std::int64_t>(), 7);
}

TEST(Optimizer, Hands_on_a_factor_on_gradients_to_those_that_take_one) {
  const at::Tensor parameter = at::ones({2}).requires_grad_();
  parameter.mutable_grad() = at::ones({2});
  Optimizer descent{SignDescent(parameter)};
  EXPECT_FALSE(descent.scales_gradients());
  EXPECT_THROW(descent.step(0.1, at::ones({})), InternalError);
  EXPECT_THROW(descent.forget_step(), InternalError);
  Optimizer adamw{AdamW({{"p", parameter}}, {.betas = {0, 0}, .weight_decay = 0})};
  EXPECT_TRUE(adamw.scales_gradients());
  adamw.step(0.25, at::full({}, -3));
  EXPECT_TRUE(at::allclose(parameter, at::full({2}, 1.25)));
}

TEST(BuildOptimizer, Builds_adamw) {
  const Optimizer optimizer = build_optimizer(AdamWConfig{.lr = 0.25}, {{"p", at::ones({2})}});
  EXPECT_EQ(optimizer.learning_rate(), 0.25);
  EXPECT_TRUE(optimizer.state_dict().contains("p.exp_avg"));
}

TEST(BuildOptimizer, Builds_stochastic_adamw_with_the_seed) {
  const Optimizer optimizer =
      build_optimizer(StochasticAdamWConfig{.lr = 0.25}, {{"p", at::ones({2}, at::kBFloat16)}}, /*seed=*/42);
  EXPECT_EQ(optimizer.learning_rate(), 0.25);
  EXPECT_EQ(optimizer.state_dict().at("rounding_seed").local.item<std::int64_t>(), 42);
}

}  // namespace
}  // namespace d9d::optimizer_test
