#include "d9d/kernels/linear_cross_entropy/gradient_filter.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_preset.h"

#include "tests/kernels/linear_cross_entropy/gradient_filter_testing.h"
#include "tests/support/compare.h"

namespace d9d::kernels::gradient_filter_test {
namespace {

using ::d9d::testing::dense;
using ::d9d::testing::DenseFilter;
using ::d9d::testing::expect_equal;
using ::d9d::testing::filter_gradients;
using ::d9d::testing::FilterCase;
using ::d9d::testing::filtered_options;
using ::d9d::testing::FilterGradients;
using ::d9d::testing::leaf;
using ::d9d::testing::peaked_case;
using ::d9d::testing::share_of_bound;
using ::d9d::testing::share_of_zeros;
using ::d9d::testing::values;
using ::d9d::testing::with_low_rank;

constexpr double kEps = 1e-3;
constexpr ::d9d::testing::TileSize kTile = {.rows = 1024, .columns = 1};  // all targets of these tests

TEST(GradientFilter, Leaves_out_exactly_the_tiles_below_eps) {
  for (const LinearCrossEntropyOptions& options : filtered_options(kEps)) {
    for (const bool has_lse_gradient : {true, false}) {
      FilterCase one = peaked_case({300, 0, 1, 499});
      if (!has_lse_gradient) one.grad_lse = at::Tensor();
      const DenseFilter expected(one, options);
      const at::Tensor kept = expected.filtered(kTile);
      ASSERT_GT(share_of_zeros(kept), 0.3);
      ASSERT_LT(share_of_zeros(kept), 0.9);
      expect_equal(filter_gradients(one, options, linear_cross_entropy), expected.gradients(kept),
                   test::tolerance("fp64 repeated"));
    }
  }
}

TEST(GradientFilter, Leaves_out_the_same_tiles_of_a_term_of_low_rank) {
  for (const LinearCrossEntropyOptions& options : filtered_options(kEps)) {
    const FilterCase one = peaked_case({300, 0, 1, 499});
    expect_equal(filter_gradients(one, options, with_low_rank), filter_gradients(one, options, linear_cross_entropy),
                 test::tolerance("fp64 repeated"));
  }
}

TEST(GradientFilter, Stays_within_its_bound_of_dense_for_every_eps_and_chunk_size) {
  const FilterCase one = peaked_case({300, 500});
  for (const double eps : {3e-2, 1e-3, 3e-4}) {
    const DenseFilter exact(one, {.filter_eps = eps});
    ASSERT_GT(share_of_zeros(exact.filtered(kTile)), 0.3);
    const FilterGradients expected = filter_gradients(one, {}, dense), bound = exact.bound();
    for (const std::int64_t chunk_size : {1000, 300 * 70, 1 << 20}) {
      SCOPED_TRACE(cat("eps ", eps, ", chunk size ", chunk_size));
      const FilterGradients actual =
          filter_gradients(one, {.chunk_size = chunk_size, .filter_eps = eps}, linear_cross_entropy);
      const double rounding = test::tolerance("fp64 repeated").value;
      EXPECT_LE(share_of_bound(actual.hidden, expected.hidden, bound.hidden, rounding), 1);
      EXPECT_LE(share_of_bound(actual.weights, expected.weights, bound.weights, rounding), 1);
    }
  }
}

TEST(GradientFilter, Stays_within_its_bound_in_bf16_with_the_automatic_eps) {
  const FilterCase one = peaked_case({300, 500});
  const LinearCrossEntropyOptions options = with_preset({}, LinearCrossEntropyPreset::kCce, at::kBFloat16);
  const DenseFilter exact(one, options, at::kBFloat16);
  const FilterGradients whole = exact.gradients(exact.grad_logits()), bound = exact.bound();
  const FilterGradients actual = filter_gradients(one, options, linear_cross_entropy, at::kBFloat16);
  const double rounding = test::tolerance("filtered bf16").value;
  EXPECT_LE(share_of_bound(actual.hidden, whole.hidden, bound.hidden, rounding), 1);
  EXPECT_LE(share_of_bound(actual.weights, whole.weights, bound.weights, rounding), 1);
}

TEST(GradientFilter, Is_of_one_side_where_the_other_is_whole) {
  const FilterCase one = peaked_case({300, 500});
  const FilterGradients whole = filter_gradients(one, {}, linear_cross_entropy);
  const FilterGradients both = filter_gradients(one, {.filter_eps = kEps}, linear_cross_entropy);
  EXPECT_FALSE(at::equal(both.hidden, whole.hidden));
  EXPECT_FALSE(at::equal(both.weights, whole.weights));
  const FilterGradients of_e =
      filter_gradients(one, {.filter_eps = kEps, .filter_c_grad = false}, linear_cross_entropy);
  EXPECT_TRUE(at::equal(of_e.hidden, both.hidden));
  EXPECT_TRUE(at::equal(of_e.weights, whole.weights));
  const FilterGradients of_c =
      filter_gradients(one, {.filter_eps = kEps, .filter_e_grad = false}, linear_cross_entropy);
  EXPECT_TRUE(at::equal(of_c.hidden, whole.hidden));
  EXPECT_TRUE(at::equal(of_c.weights, both.weights));
  const FilterGradients none =
      filter_gradients(one, {.filter_eps = kEps, .filter_e_grad = false, .filter_c_grad = false}, linear_cross_entropy);
  EXPECT_TRUE(at::equal(none.hidden, whole.hidden));
  EXPECT_TRUE(at::equal(none.weights, whole.weights));
}

TEST(GradientFilter, Leaves_the_gradient_of_the_bias_whole) {
  const FilterCase one = peaked_case({800});
  const at::Tensor bias = values({800}, 30);
  const FilterGradients whole = filter_gradients(one, {.bias = bias}, linear_cross_entropy);
  const FilterGradients actual = filter_gradients(one, {.bias = bias, .filter_eps = kEps}, linear_cross_entropy);
  EXPECT_TRUE(at::equal(actual.bias, whole.bias));
  EXPECT_FALSE(at::equal(actual.weights, whole.weights));
}

// The gradient of z-loss and that of a confident target are not small where softmax - onehot is.
TEST(GradientFilter, Keeps_what_z_loss_adds_at_confident_targets) {
  FilterCase one = peaked_case({800});
  one.grad_lse = at::Tensor();
  one.hidden = one.hidden * 4;
  const LinearCrossEntropyOptions options{.z_loss_weight = 0.05, .filter_eps = kEps};
  const FilterGradients exact = filter_gradients(one, {.z_loss_weight = 0.05}, dense);
  const FilterGradients bound = DenseFilter(one, options).bound();
  const FilterGradients actual = filter_gradients(one, options, linear_cross_entropy);
  EXPECT_LE(share_of_bound(actual.hidden, exact.hidden, bound.hidden, test::tolerance("fp64 repeated").value), 1);
  EXPECT_GT(share_of_bound(exact.hidden, at::zeros_like(exact.hidden), bound.hidden, 0), 10);
}

TEST(GradientFilter, Does_not_hide_nan) {
  FilterCase one = peaked_case({800});
  one.hidden[200][3] = std::numeric_limits<double>::quiet_NaN();
  one.targets[200] = 5;
  const FilterGradients actual = filter_gradients(one, {.filter_eps = kEps}, linear_cross_entropy);
  EXPECT_TRUE(actual.hidden[200].isnan().all().item<bool>());
  EXPECT_FALSE(actual.hidden[100].isnan().any().item<bool>());
  EXPECT_TRUE(actual.weights.isnan().all().item<bool>());
}

TEST(GradientFilter, Keeps_columns_with_one_gradient_that_is_not_below_its_threshold) {
  const at::Tensor gradient = at::tensor({0.9, -0.9, 0.1, -2.0, 0.0, 1.0,  //
                                          0.0, 0.00, 0.3, 0.00, 0.0, 0.0,  //
                                          0.0, 0.00, 0.0, 0.00, 0.0, 0.0},
                                         at::kDouble)
                                  .view({3, 6});
  const at::Tensor threshold = at::tensor({1.0, 0.2, std::numeric_limits<double>::infinity()}, at::kDouble);
  EXPECT_TRUE(at::equal(detail::kept_columns_aten(gradient, threshold),
                        at::tensor({0, 0, 1, 1, 0, 1}, at::kLong).to(at::kBool)));
}

TEST(GradientFilter, Refuses_an_eps_that_is_not_positive) {
  const auto with = [](double eps) {
    return linear_cross_entropy(values({2, 4}, 1), values({7, 4}, 2), at::tensor({1, 2}, at::kLong),
                                {.filter_eps = eps});
  };
  EXPECT_THAT([&] { (void)with(0); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("expected filter_eps > 0, got 0")));
  EXPECT_THROW((void)with(-1e-3), ConfigError);
  EXPECT_THROW((void)with(std::numeric_limits<double>::quiet_NaN()), ConfigError);
  EXPECT_NO_THROW((void)with(1e-3));
}

}  // namespace
}  // namespace d9d::kernels::gradient_filter_test
