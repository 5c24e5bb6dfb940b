#include "d9d/lr_scheduler/curve.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

namespace d9d::curve_test {
namespace {

constexpr double kTolerance = 1e-12;

TEST(Curve, Starts_and_ends_at_its_values) {
  for (const CurveConfig& curve : {CurveConfig(LinearCurveConfig{}), CurveConfig(CosineCurveConfig{}),
                                   CurveConfig(ExponentialCurveConfig{}), CurveConfig(PolyCurveConfig{.power = 0.5})}) {
    EXPECT_NEAR(interpolate(curve, 0.3, 1.7, 0), 0.3, kTolerance);
    EXPECT_NEAR(interpolate(curve, 0.3, 1.7, 1), 1.7, kTolerance);
  }
}

TEST(Curve, Linear_goes_straight) {
  EXPECT_NEAR(interpolate(LinearCurveConfig{}, 1, 0.2, 0.25), 0.8, kTolerance);
  EXPECT_EQ(interpolate(LinearCurveConfig{}, 0, 1, 0), 0);
}

TEST(Curve, Cosine_is_a_half_wave) {
  EXPECT_NEAR(interpolate(CosineCurveConfig{}, 1, 0, 1.0 / 3), 0.75, kTolerance);
  EXPECT_NEAR(interpolate(CosineCurveConfig{}, 1, 0, 0.5), 0.5, kTolerance);
  EXPECT_NEAR(interpolate(CosineCurveConfig{}, 0, 2, 0.25), 1 - std::numbers::sqrt2 / 2, kTolerance);
}

TEST(Curve, Poly_raises_the_progress_to_its_power) {
  EXPECT_NEAR(interpolate(PolyCurveConfig{.power = 1}, 1, 2, 0.25), 1.25, kTolerance);
  EXPECT_NEAR(interpolate(PolyCurveConfig{.power = 2}, 1, 2, 0.25), 1.0625, kTolerance);
  EXPECT_NEAR(interpolate(PolyCurveConfig{.power = 0.5}, 1, 2, 0.25), 1.5, kTolerance);
}

TEST(Curve, Exponential_is_straight_in_the_logarithm) {
  EXPECT_NEAR(interpolate(ExponentialCurveConfig{}, 1, 0.01, 0.5), 0.1, kTolerance);
}

TEST(Curve, Exponential_takes_zero_as_a_very_small_value) {
  EXPECT_NEAR(interpolate(ExponentialCurveConfig{}, 0, 1, 0), 1e-8, 1e-20);
  EXPECT_NEAR(interpolate(ExponentialCurveConfig{}, 0, 1, 0.5), 1e-4, 1e-16);
  EXPECT_NEAR(interpolate(ExponentialCurveConfig{}, 1, 0, 1), 1e-8, 1e-20);
}

}  // namespace
}  // namespace d9d::curve_test
