#include "d9d/kernels/adamw/adamw.h"

#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/adamw/adamw_impl.h"
#include "d9d/kernels/stochastic/copy_stochastic.h"

#include "tests/kernels/adamw/adamw_testing.h"
#include "tests/support/tolerances.h"

namespace d9d::kernels::adamw_test {
namespace {

using ::d9d::testing::adamw_tensors;
using ::d9d::testing::AdamWDtypes;
using ::d9d::testing::cloned;
using ::d9d::testing::converted;
using ::d9d::testing::difference;
using ::d9d::testing::kAdamOptions;
using ::d9d::testing::kAdamWOptions;

const at::Tensor kOne = at::ones({}, at::kDouble);

TEST(AdamWKernel, Equals_its_composition_of_ATen_operators) {
  for (const AdamWOptions& options : {kAdamWOptions, kAdamOptions}) {
    for (const AdamWDtypes& dtypes :
         {AdamWDtypes{at::kDouble, at::kDouble, at::kDouble}, AdamWDtypes{at::kFloat, at::kFloat, at::kFloat},
          AdamWDtypes{at::kBFloat16, at::kFloat, at::kFloat}, AdamWDtypes{at::kBFloat16, at::kBFloat16, at::kFloat}}) {
      const AdamWTensors ours = adamw_tensors({1003}, dtypes, 1);
      const AdamWTensors composed = cloned(ours);
      ASSERT_TRUE(detail::has_adamw_loop(ours));
      adamw_({ours}, options, kOne);
      detail::adamw_aten(composed, detail::adamw_factors(options, 5), kOne);
      const double tolerance =
          dtypes.parameter == at::kDouble ? test::tolerance("fp64").value : test::tolerance("fp32").value;
      EXPECT_LT(difference(ours.exp_avg, composed.exp_avg), tolerance);
      EXPECT_LT(difference(ours.exp_avg_sq, composed.exp_avg_sq), tolerance);
      EXPECT_LT(difference(ours.parameter, composed.parameter),
                dtypes.parameter == at::kBFloat16 ? 1.0 / 256 : tolerance);  // a tie may be rounded the other way
    }
  }
}

TEST(AdamWKernel, Changes_nothing_at_a_scale_of_nan) {
  const at::Tensor nan = at::full({}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  for (const AdamWDtypes& dtypes :
       {AdamWDtypes{at::kDouble, at::kDouble, at::kDouble}, AdamWDtypes{at::kBFloat16, at::kFloat, at::kFloat},
        AdamWDtypes{at::kBFloat16, at::kBFloat16, at::kBFloat16, /*rounds=*/true},
        AdamWDtypes{at::kHalf, at::kHalf, at::kFloat}}) {  // the last goes through ATen
    const AdamWTensors ours = adamw_tensors({1003}, dtypes, 1);
    const AdamWTensors before = cloned(ours);
    ours.grad.fill_(std::numeric_limits<double>::quiet_NaN());
    adamw_({ours}, kAdamWOptions, nan);
    EXPECT_TRUE(at::equal(ours.parameter, before.parameter));
    EXPECT_TRUE(at::equal(ours.exp_avg, before.exp_avg));
    EXPECT_TRUE(at::equal(ours.exp_avg_sq, before.exp_avg_sq));
  }
}

// Only the rounding differs: the float results are those of a float parameter.
TEST(AdamWKernel, Rounds_as_three_stochastic_copies) {
  for (const at::ScalarType grad : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType moments : {at::kFloat, at::kBFloat16}) {
      const AdamWTensors ours = adamw_tensors({5003}, {at::kBFloat16, grad, moments, /*rounds=*/true}, 2);
      AdamWTensors wide = converted(ours, [](const at::Tensor& tensor) { return tensor.to(at::kFloat).clone(); });
      wide.rounding.reset();
      adamw_({ours}, kAdamWOptions, kOne);
      adamw_({wide}, kAdamWOptions, kOne);
      const auto expect = [&](const at::Tensor& actual, const at::Tensor& expected, std::uint64_t step) {
        at::Tensor rounded = expected;
        if (actual.scalar_type() == at::kBFloat16) {
          rounded = at::empty_like(actual);
          copy_fp32_to_bf16_stochastic_(rounded, expected, {.key = 2, .step = step});
        }
        EXPECT_TRUE(at::equal(actual, rounded)) << step;
      };
      expect(ours.parameter, wide.parameter, 15);
      expect(ours.exp_avg, wide.exp_avg, 16);
      expect(ours.exp_avg_sq, wide.exp_avg_sq, 17);
    }
  }
}

TEST(AdamWKernel, Rounds_through_ATen_to_the_same_bits) {
  const AdamWTensors ours = adamw_tensors({301}, {at::kBFloat16, at::kFloat, at::kBFloat16, true}, 3);
  const AdamWTensors strided = converted(
      ours, [](const at::Tensor& tensor) { return at::empty_strided({301}, {2}, tensor.options()).copy_(tensor); });
  ASSERT_FALSE(detail::has_adamw_loop(strided));
  adamw_({ours}, kAdamWOptions, kOne);
  adamw_({strided}, kAdamWOptions, kOne);
  for (const auto& [a, b] : {std::pair(ours.parameter, strided.parameter), std::pair(ours.exp_avg, strided.exp_avg),
                             std::pair(ours.exp_avg_sq, strided.exp_avg_sq)})
    EXPECT_LE(at::ne(a, b).sum().item<std::int64_t>(), 1);  // a difference in the last bit of a float value
}

// p = 1 and an update of a quarter of the distance to the next lower bfloat16: a quarter of the elements changes.
TEST(AdamWKernel, Moves_the_fraction_of_elements_that_keeps_the_mean) {
  constexpr std::int64_t kSize = 1 << 21;
  constexpr double kUlpBelow = 1.0 / 256;
  const AdamWTensors tensors{.parameter = at::ones({kSize}, at::kBFloat16),
                             .grad = at::ones({kSize}, at::kBFloat16),
                             .exp_avg = at::zeros({kSize}, at::kBFloat16),
                             .exp_avg_sq = at::zeros({kSize}, at::kBFloat16),
                             .rounding = StochasticRounding{.key = 7}};
  adamw_({tensors}, {.learning_rate = kUlpBelow / 4, .beta1 = 0, .beta2 = 0, .eps = 1e-10}, kOne);
  const at::Tensor moved = tensors.parameter.lt(1).to(at::kDouble);
  EXPECT_NEAR(moved.mean().item<double>(), 0.25, 0.002);  // seven standard deviations
  EXPECT_NEAR(tensors.parameter.to(at::kDouble).mean().item<double>(), 1 - kUlpBelow / 4, 1e-5);
}

TEST(AdamWKernel, Rounds_the_parts_of_a_tensor_as_the_whole) {
  const AdamWTensors whole = adamw_tensors({64, 48}, {at::kBFloat16, at::kFloat, at::kBFloat16, true}, 4);
  AdamWTensors columns = converted(whole, [](const at::Tensor& tensor) { return tensor.narrow(1, 16, 16).clone(); });
  columns.rounding->rows = {.start = 16, .row_size = 16, .row_pitch = 48};
  adamw_({whole}, kAdamWOptions, kOne);
  adamw_({columns}, kAdamWOptions, kOne);
  EXPECT_TRUE(at::equal(columns.parameter, whole.parameter.narrow(1, 16, 16)));
  EXPECT_TRUE(at::equal(columns.exp_avg_sq, whole.exp_avg_sq.narrow(1, 16, 16)));
}

TEST(AdamWKernel, Refuses_what_does_not_fit) {
  const AdamWTensors fitting = adamw_tensors({4}, {at::kBFloat16, at::kFloat, at::kBFloat16, true}, 5);
  const auto with = [&](const auto& change) {
    AdamWTensors changed = cloned(fitting);
    change(changed);
    return [changed] { adamw_({changed}, kAdamWOptions, kOne); };
  };
  EXPECT_NO_THROW(with([](AdamWTensors&) {})());
  EXPECT_THROW(with([](AdamWTensors& t) { t.grad = at::zeros({5}); })(), ConfigError);
  EXPECT_THROW(with([](AdamWTensors& t) { t.exp_avg = at::zeros({4}); })(), ConfigError);
  EXPECT_THROW(with([](AdamWTensors& t) { t.rounding.reset(); })(), ConfigError);
  EXPECT_THROW(with([](AdamWTensors& t) { t.parameter = at::zeros({4}); })(), ConfigError);
  EXPECT_THROW(with([](AdamWTensors& t) { t.grad = at::zeros({4}, at::kLong); })(), ConfigError);
  EXPECT_THROW(adamw_({fitting}, kAdamWOptions, at::ones({1})), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::adamw_test
