#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/rms_norm/rms_norm.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::add_rms_norm_test {
namespace {

using ::d9d::testing::values;
using ::d9d::testing::worst_difference;

std::vector<at::Tensor> added_and_normed(const std::vector<at::Tensor>& in) {
  const auto [sum, norm] = add_rms_norm(in[0], in[1], in[2], 1e-5, /*zero_centered=*/true);
  return {sum, norm};
}

std::vector<at::Tensor> addition_and_norm(const std::vector<at::Tensor>& in) {
  const at::Tensor sum = in[0] + in[1];
  return {sum, rms_norm(sum, in[2], 1e-5, /*zero_centered=*/true)};
}

TEST(AddRmsNorm, On_the_cpu_equals_an_addition_and_a_norm_bit_for_bit) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
    EXPECT_EQ(worst_difference(added_and_normed, addition_and_norm,
                               {values({7, 33}, 1, dtype), values({33, 7}, 2, dtype).t(), values({33}, 3, dtype)}),
              0)
        << dtype;
}

TEST(AddRmsNorm, Without_a_residual_gives_back_its_input) {
  EXPECT_EQ(worst_difference(
                [](const auto& in) {
                  const auto [same, norm] = add_rms_norm(in[0], std::nullopt, in[1], 1e-5);
                  return std::vector{same, norm};
                },
                [](const auto& in) {
                  return std::vector{in[0] + 0, rms_norm(in[0], in[1], 1e-5)};
                },
                {values({7, 33}, 1), values({33}, 2)}),
            0);
}

TEST(AddRmsNorm, Takes_no_rows) {
  EXPECT_EQ(
      worst_difference(added_and_normed, addition_and_norm, {values({0, 3}, 1), values({0, 3}, 2), values({3}, 3)}), 0);
}

TEST(AddRmsNorm, Refuses_what_does_not_fit) {
  const at::Tensor x = values({3, 4}, 1);
  EXPECT_THROW((void)add_rms_norm(x, values({1, 4}, 2), values({4}, 3)), ConfigError);
  EXPECT_THROW((void)add_rms_norm(x, values({3, 4}, 2, at::kFloat), values({4}, 3)), ConfigError);
  EXPECT_THROW((void)add_rms_norm(x, x, values({3}, 3)), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::add_rms_norm_test
