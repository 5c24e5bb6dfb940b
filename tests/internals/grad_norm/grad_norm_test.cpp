#include "d9d/internals/grad_norm/grad_norm.h"

#include <cmath>
#include <limits>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/python.h"

namespace d9d::grad_norm_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<double> kOrders = {1, 2, 3, kInfinity};

double norm(const std::vector<at::Tensor>& gradients, double order) {
  return global_grad_norm(gradients, order).item<double>();
}

// The gradients that clip_grad_norm_oracle.py builds.
std::vector<at::Tensor> oracle_gradients() {
  std::vector<at::Tensor> gradients;
  const std::vector<std::vector<std::int64_t>> sizes = {{3}, {2, 5}, {1}};
  for (const auto& size : sizes) {
    at::Tensor gradient = at::zeros(size, at::kDouble);
    for (std::int64_t i = 0; i < gradient.numel(); ++i)
      gradient.view(-1)[i] = std::sin(1.0 + 3 * static_cast<double>(gradients.size()) + static_cast<double>(i)) * 2;
    gradients.push_back(gradient);
  }
  return gradients;
}

TEST(GradNorm, Equals_clip_grad_norm_of_torch) {
  std::istringstream lines(test::run_python("tests/internals/grad_norm/clip_grad_norm_oracle.py", {}));
  int num_compared = 0;
  std::string order_text;
  for (double max_norm = 0; lines >> order_text >> max_norm; ++num_compared) {
    const double order = order_text == "inf" ? kInfinity : std::stod(order_text);
    double expected_norm = 0;
    lines >> expected_norm;
    const std::vector<at::Tensor> gradients = oracle_gradients();
    const at::Tensor norm = global_grad_norm(gradients, order);
    EXPECT_NEAR(norm.item<double>(), expected_norm, 1e-14) << order;
    const at::Tensor coefficient = clip_coefficient(norm, max_norm);
    for (const at::Tensor& gradient : gradients) {
      for (std::int64_t i = 0; i < gradient.numel(); ++i) {
        double expected = 0;
        lines >> expected;
        EXPECT_NEAR((gradient.view(-1)[i] * coefficient).item<double>(), expected, 1e-14) << order << " " << max_norm;
      }
    }
  }
  EXPECT_EQ(num_compared, 12);
}

TEST(GradNorm, Adds_long_fp32_tensors_without_losing_digits) {
  const at::Tensor gradient = at::full({20'000'001}, 0.1F);
  const double element = gradient[0].item<double>();
  const auto size = static_cast<double>(gradient.numel());
  EXPECT_NEAR(norm({gradient}, 2) / (element * std::sqrt(size)), 1, 1e-6);
  EXPECT_NEAR(norm({gradient}, 1) / (element * size), 1, 1e-6);
}

TEST(GradNorm, Equals_a_wide_norm_for_every_dtype_and_stride) {
  const at::Tensor numbers = at::linspace(-3, 5, 4321, at::kDouble);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor strided = at::stack({numbers.to(dtype), numbers.to(dtype)}, 1).select(1, 0);
    for (const double order : kOrders) {
      const double expected = at::linalg_vector_norm(strided.to(at::kDouble), order).item<double>();
      EXPECT_NEAR(norm({strided}, order) / expected, 1, dtype == at::kDouble ? 1e-14 : 1e-6) << dtype << " " << order;
    }
  }
}

TEST(GradNorm, Does_not_depend_on_the_number_of_threads) {
  const at::Tensor gradient = at::linspace(-1, 1, 1'000'003, at::kFloat);
  const int num_threads = at::get_num_threads();
  at::set_num_threads(1);
  const double alone = norm({gradient}, 2);
  at::set_num_threads(3);
  EXPECT_EQ(norm({gradient}, 2), alone);
  at::set_num_threads(num_threads);
}

TEST(GradNorm, Is_zero_without_gradients) {
  for (const double order : kOrders) {
    EXPECT_EQ(norm({}, order), 0);
    EXPECT_EQ(norm({at::empty({0}), at::zeros({3})}, order), 0);
  }
}

TEST(GradNorm, Shows_what_is_not_finite) {
  for (const double order : kOrders) {
    for (const std::int64_t where : {0, 7, 20'000, 30'000}) {
      at::Tensor gradient = at::ones({30'001});
      gradient[where] = std::nan("");
      EXPECT_TRUE(std::isnan(norm({at::ones({2}), gradient, at::ones({2})}, order))) << order << " " << where;
      gradient[where] = -kInfinity;
      EXPECT_EQ(norm({gradient}, order), kInfinity) << order << " " << where;
    }
  }
}

TEST(GradNorm, Refuses_what_has_no_norm) {
  EXPECT_THROW((void)global_grad_norm({at::ones({2})}, 0.5), ConfigError);
  EXPECT_THROW((void)global_grad_norm({at::Tensor()}, 2), ConfigError);
  EXPECT_THROW((void)global_grad_norm({at::ones({2}, at::kLong)}, 2), ConfigError);
  EXPECT_THROW((void)global_grad_norm({at::ones({2}), at::empty({2}, at::kMeta)}, 2), ConfigError);
  EXPECT_THROW((void)clip_coefficient(at::ones({}), 0), ConfigError);
}

}  // namespace
}  // namespace d9d::grad_norm_test
