#include "d9d/kernels/momentum/momentum.h"

#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/momentum/momentum_impl.h"

#include "tests/kernels/momentum/momentum_testing.h"
#include "tests/support/tolerances.h"

namespace d9d::kernels::momentum_test {
namespace {

using ::d9d::testing::cloned;
using ::d9d::testing::difference;
using ::d9d::testing::kLionFactors;
using ::d9d::testing::kSgdFactors;
using ::d9d::testing::momentum_tensors;
using ::d9d::testing::MomentumDtypes;

const at::Tensor kOne = at::ones({}, at::kDouble);
const at::Tensor kNaN = at::full({}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);

const std::vector<MomentumDtypes> kLoops = {
    {at::kDouble, at::kDouble, at::kDouble},    {at::kFloat, at::kFloat, at::kFloat},
    {at::kFloat, at::kBFloat16, at::kFloat},    {at::kBFloat16, at::kFloat, at::kFloat},
    {at::kBFloat16, at::kBFloat16, at::kFloat}, {at::kFloat, at::kFloat, std::nullopt}};

TEST(MomentumKernel, Equals_its_composition_of_ATen_operators) {
  for (const MomentumFactors& factors : {kSgdFactors, kLionFactors}) {
    for (const MomentumDtypes& dtypes : kLoops) {
      const MomentumTensors ours = momentum_tensors({1003}, dtypes, 1), composed = cloned(ours);
      ASSERT_TRUE(detail::has_momentum_loop(ours));
      momentum_({ours}, factors, kOne * 0.7);
      detail::momentum_aten(composed, factors, kOne * 0.7);
      const double tolerance =
          dtypes.parameter == at::kDouble ? test::tolerance("fp64").value : test::tolerance("fp32").value;
      if (ours.buffer.defined()) {
        EXPECT_LT(difference(ours.buffer, composed.buffer), tolerance);
      }
      EXPECT_LT(difference(ours.parameter, composed.parameter),
                dtypes.parameter == at::kBFloat16 ? 1.0 / 256 : tolerance);  // a tie may be rounded the other way
    }
  }
}

TEST(MomentumKernel, Computes_the_formula_of_its_header) {
  const auto one = [](double value) { return at::full({1}, value, at::kDouble); };
  const MomentumTensors tensors{.parameter = one(2.0), .grad = one(3.0), .buffer = one(5.0)};
  momentum_({tensors},
            {.gradient_decay = 0.5,
             .buffer_decay = 0.25,
             .buffer_grad = 2.0,
             .update_buffer = 4.0,
             .update_grad = 8.0,
             .parameter_decay = 0.75,
             .step_size = 0.125},
            kOne * 2.0);
  const double grad = 2.0 * 3.0 + 0.5 * 2.0;
  EXPECT_EQ(tensors.buffer.item<double>(), 0.25 * 5.0 + 2.0 * grad);
  EXPECT_EQ(tensors.parameter.item<double>(), 0.75 * 2.0 - 0.125 * (4.0 * 5.0 + 8.0 * grad));
}

TEST(MomentumKernel, Takes_the_sign_of_zero_as_zero_and_keeps_nan) {
  for (const bool composed : {false, true}) {
    const MomentumTensors tensors{.parameter = at::ones({4}, at::kDouble),
                                  .grad = at::tensor({0.0, 1e-30, -2.0, kNaN.item<double>()}, at::kDouble),
                                  .buffer = at::zeros({4}, at::kDouble)};
    const MomentumFactors factors{.step_size = 0.5, .takes_sign = true};
    composed ? detail::momentum_aten(tensors, factors, kOne) : momentum_({tensors}, factors, kOne);
    EXPECT_TRUE(at::equal(tensors.parameter.narrow(0, 0, 3), at::tensor({1.0, 0.5, 1.5}, at::kDouble)));
    EXPECT_TRUE(tensors.parameter[3].isnan().item<bool>());
  }
}

TEST(MomentumKernel, Changes_nothing_at_a_scale_of_nan) {
  std::vector<MomentumDtypes> all = kLoops;
  all.push_back({at::kHalf, at::kHalf, at::kFloat});  // goes through ATen
  for (const MomentumDtypes& dtypes : all) {
    const MomentumTensors ours = momentum_tensors({1003}, dtypes, 1), before = cloned(ours);
    ours.grad.fill_(std::numeric_limits<double>::infinity());
    momentum_({ours}, kSgdFactors, kNaN);
    EXPECT_TRUE(at::equal(ours.parameter, before.parameter));
    if (ours.buffer.defined()) {
      EXPECT_TRUE(at::equal(ours.buffer, before.buffer));
    }
  }
}

TEST(MomentumKernel, Refuses_tensors_that_do_not_fit) {
  const auto step = [](const MomentumTensors& tensors, const at::Tensor& scale = kOne) {
    momentum_({tensors}, kSgdFactors, scale);
  };
  const MomentumTensors fitting = momentum_tensors({3}, {at::kFloat, at::kFloat, at::kFloat}, 1);
  EXPECT_NO_THROW(step(fitting));
  EXPECT_THROW(step(fitting, at::ones({1})), ConfigError);
  MomentumTensors other = fitting;
  other.grad = at::ones({4});
  EXPECT_THROW(step(other), ConfigError);
  other = fitting;
  other.buffer = at::ones({3}, at::kDouble);
  EXPECT_THROW(step(other), ConfigError);
  other = fitting;
  other.grad = at::ones({3}, at::kLong);
  EXPECT_THROW(step(other), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::momentum_test
