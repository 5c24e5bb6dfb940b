#include "d9d/optim/optimizer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/optim/build_optimizer.h"

namespace d9d {
namespace {

// Written outside the library, inherits nothing.
class SignDescent {
 public:
  explicit SignDescent(at::Tensor parameter) : parameter_(std::move(parameter)) {}
  double learning_rate() const { return 0.5; }
  void step(double learning_rate) {
    const at::NoGradGuard no_grad;
    parameter_.sub_(parameter_.grad().sign(), learning_rate);
  }
  std::map<std::string, at::Tensor> state_dict() const { return {{"num_steps", num_steps_}}; }
  void load_state_dict(const std::map<std::string, at::Tensor>& state) { num_steps_.copy_(state.at("num_steps")); }

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

TEST(Optimizer, Holds_a_class_from_outside_the_library) {
  const at::Tensor parameter = at::ones({2}).requires_grad_();
  Optimizer optimizer{SignDescent(parameter)};
  (parameter * at::tensor({3.0F, -2.0F})).sum().backward();
  optimizer.step(optimizer.learning_rate());
  EXPECT_TRUE(at::equal(parameter, at::tensor({0.5F, 1.5F})));
  optimizer.load_state_dict({{"num_steps", at::full({}, 7, at::kLong)}});
  EXPECT_EQ(optimizer.state_dict().at("num_steps").item<std::int64_t>(), 7);
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
  EXPECT_EQ(optimizer.state_dict().at("rounding_seed").item<std::int64_t>(), 42);
}

TEST(BuildOptimizer, Refuses_by_name_what_is_not_built) {
  EXPECT_THAT([] { (void)build_optimizer(SgdConfig{}, {}); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("\"sgd\"")));
}

}  // namespace
}  // namespace d9d
