#include "d9d/kernels/norm_rotary/norm_rotary.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/rms_norm/rms_norm.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::norm_rotary_test {
namespace {

using ::d9d::testing::values;
using ::d9d::testing::worst_difference;
using Tensors = std::vector<at::Tensor>;

// Rotates channel pairs as complex numbers after a plain norm.
at::Tensor composition(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& angle, bool zero_centered) {
  const at::Tensor normed = x * (x.square().mean(-1, true) + 1e-5).rsqrt() * (zero_centered ? weight + 1 : weight);
  const at::Tensor unit = at::polar(at::ones_like(angle), angle).unsqueeze(2);
  const std::int64_t rotary_dim = 2 * angle.size(-1);
  const at::Tensor pairs = normed.narrow(-1, 0, rotary_dim).unflatten(-1, {-1, 2});
  const at::Tensor turned = at::complex(pairs.select(-1, 0), pairs.select(-1, 1)) * unit;
  return at::cat({at::stack({at::real(turned), at::imag(turned)}, -1).flatten(-2),
                  normed.narrow(-1, rotary_dim, x.size(-1) - rotary_dim)},
                 -1);
}

TEST(NormRotary, Equals_a_norm_and_complex_multiplication_in_fp64) {
  for (const bool zero_centered : {false, true})
    for (const std::int64_t rotary_dim : {8, 4}) {
      const at::Tensor angle = values({2, 5, rotary_dim / 2}, 5);
      const at::Tensor cos = angle.cos().repeat_interleave(2, -1);
      const at::Tensor sin = angle.sin().repeat_interleave(2, -1);
      EXPECT_LT(worst_difference(
                    [&](const auto& in) {
                      const auto [q, k] = norm_rotary(
                          in[0], in[1], in[2], in[3], cos, sin,
                          {.style = RotaryStyle::kInterleaved, .eps = 1e-5, .zero_centered = zero_centered});
                      return Tensors{q, k};
                    },
                    [&](const auto& in) {
                      return Tensors{composition(in[0], in[2], angle, zero_centered),
                                     composition(in[1], in[3], angle, zero_centered)};
                    },
                    {values({2, 5, 3, 8}, 1), values({2, 5, 2, 8}, 2), values({8}, 3), values({8}, 4)}),
                1e-13)
          << rotary_dim;
    }
}

TEST(NormRotary, Is_rms_norm_and_apply_rotary_bit_for_bit_on_a_cpu) {
  const at::Tensor q = values({2, 5, 4, 64}, 1, at::kBFloat16);
  const at::Tensor k = values({2, 5, 2, 64}, 2, at::kBFloat16);
  const at::Tensor weight = values({64}, 3, at::kFloat);
  const at::Tensor table = values({1, 5, 64}, 4, at::kFloat);
  const auto fused = norm_rotary(q, k, weight, weight, table, table, {});
  const auto composed = apply_rotary(rms_norm(q, weight), rms_norm(k, weight), table, table, RotaryStyle::kHalf);
  EXPECT_TRUE(at::equal(fused.first, composed.first));
  EXPECT_TRUE(at::equal(fused.second, composed.second));
}

TEST(NormRotary, Hands_values_on_as_they_are_on_a_cpu) {
  const at::Tensor qkv = testing::leaf(values({2, 5, 8 * 64}, 1));
  const at::Tensor heads = qkv.unflatten(-1, {8, 64});
  const at::Tensor v = heads.narrow(2, 6, 2);
  const at::Tensor weight = values({64}, 3);
  const at::Tensor table = values({1, 5, 64}, 4);
  const auto [q, k, same] =
      norm_rotary(heads.narrow(2, 0, 4), heads.narrow(2, 4, 2), v, weight, weight, table, table, {});
  const auto expected = norm_rotary(heads.narrow(2, 0, 4), heads.narrow(2, 4, 2), weight, weight, table, table, {});
  EXPECT_TRUE(same.is_same(v));
  EXPECT_TRUE(at::equal(q, expected.first));
  EXPECT_TRUE(at::equal(k, expected.second));
}

TEST(NormRotary, Refuses_what_does_not_fit) {
  const at::Tensor x = values({2, 3, 2, 8}, 1);
  const at::Tensor weight = values({8}, 2);
  const at::Tensor table = values({2, 3, 8}, 3);
  EXPECT_THROW((void)norm_rotary(x, x, values({4}, 2), weight, table, table, {}), ConfigError);
  EXPECT_THROW((void)norm_rotary(x, x, weight, values({4}, 2), table, table, {}), ConfigError);
  EXPECT_THROW((void)norm_rotary(x, values({2, 4, 2, 8}, 3), weight, weight, table, table, {}), ConfigError);
  EXPECT_THROW((void)norm_rotary(x, x, weight, weight, values({2, 3, 10}, 2), values({2, 3, 10}, 2), {}), ConfigError);
  EXPECT_THROW((void)norm_rotary(x, x, weight, weight, testing::leaf(table), table, {}), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::norm_rotary_test
