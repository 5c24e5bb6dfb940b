#include "d9d/kernels/rotary/rotary.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/rotary/rotary_impl.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::rotary_test {
namespace {

using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;
using ::d9d::testing::worst_difference;

// Rotates channel pairs as complex numbers, an independent implementation of the rotation.
at::Tensor composition(const at::Tensor& x, const at::Tensor& angle, RotaryStyle style) {
  const std::int64_t rotary_dim = 2 * angle.size(-1);
  const at::Tensor turning = x.narrow(-1, 0, rotary_dim);
  const bool is_half = style == RotaryStyle::kHalf;
  const at::Tensor pairs = is_half ? turning.unflatten(-1, {2, -1}).transpose(-1, -2) : turning.unflatten(-1, {-1, 2});
  const at::Tensor unit = at::polar(at::ones_like(angle), angle).unsqueeze(2);
  const at::Tensor complex = at::complex(pairs.select(-1, 0), pairs.select(-1, 1)) * unit;
  const at::Tensor turned = at::stack({at::real(complex), at::imag(complex)}, -1);
  const at::Tensor channels = is_half ? turned.transpose(-1, -2).flatten(-2) : turned.flatten(-2);
  return at::cat({channels, x.narrow(-1, rotary_dim, x.size(-1) - rotary_dim)}, -1);
}

// [B, S, Dr] from angles [B, S, Dr/2]
at::Tensor table(const at::Tensor& angle, RotaryStyle style) {
  return style == RotaryStyle::kHalf ? at::cat({angle, angle}, -1) : angle.repeat_interleave(2, -1);
}

double error_against_composition(const at::Tensor& q, const at::Tensor& k, const at::Tensor& angle, RotaryStyle style) {
  const at::Tensor cos = table(angle, style).cos();
  const at::Tensor sin = table(angle, style).sin();
  return worst_difference(
      [&](const auto& in) {
        const auto [q_rotated, k_rotated] = apply_rotary(in[0], in[1], cos, sin, style);
        return std::vector{q_rotated, k_rotated};
      },
      [&](const auto& in) {
        return std::vector{composition(in[0], angle, style), composition(in[1], angle, style)};
      },
      {q, k});
}

class Rotary : public ::testing::TestWithParam<RotaryStyle> {};
INSTANTIATE_TEST_SUITE_P(Styles, Rotary, ::testing::Values(RotaryStyle::kHalf, RotaryStyle::kInterleaved),
                         [](const auto& test) { return test.param == RotaryStyle::kHalf ? "Half" : "Interleaved"; });

TEST_P(Rotary, Equals_complex_multiplication_in_fp64_for_every_shape) {
  struct Case {
    std::int64_t batch, sequence, q_heads, k_heads, head_dim, rotary_dim;
  };
  for (const Case& c :
       {Case{1, 1, 1, 1, 2, 2}, Case{2, 3, 4, 2, 8, 8}, Case{2, 5, 3, 1, 34, 34}, Case{2, 3, 2, 2, 10, 6},
        Case{1, 4, 2, 2, 5, 0}, Case{0, 3, 2, 2, 4, 4}, Case{2, 0, 2, 2, 4, 4}, Case{2, 3, 0, 2, 4, 2}}) {
    EXPECT_LT(error_against_composition(values({c.batch, c.sequence, c.q_heads, c.head_dim}, 1),
                                        values({c.batch, c.sequence, c.k_heads, c.head_dim}, 2),
                                        values({c.batch, c.sequence, c.rotary_dim / 2}, 3), GetParam()),
              1e-14)
        << c.batch << " " << c.sequence << " " << c.head_dim << " " << c.rotary_dim;
  }
}

TEST_P(Rotary, Shares_one_row_of_positions_between_batches) {
  EXPECT_LT(
      error_against_composition(values({3, 4, 2, 8}, 1), values({3, 4, 1, 8}, 2), values({1, 4, 4}, 3), GetParam()),
      1e-14);
}

TEST_P(Rotary, Takes_strided_heads) {
  const at::Tensor heads_first = values({2, 4, 3, 8}, 1).transpose(1, 2);
  const at::Tensor channels_strided = values({2, 3, 8, 2}, 2).transpose(2, 3);
  EXPECT_LT(error_against_composition(heads_first, channels_strided, values({2, 3, 4}, 3), GetParam()), 1e-14);
}

TEST_P(Rotary, Transposes_arbitrary_tables_in_the_backward) {
  const at::Tensor x = values({2, 3, 2, 40}, 1);
  const at::Tensor grad = values({2, 3, 2, 40}, 2);
  const at::Tensor cos = values({2, 3, 36}, 3);
  const at::Tensor sin = values({2, 3, 36}, 4);
  const at::Tensor q = leaf(x);
  const at::Tensor out = apply_rotary(q, x, cos, sin, GetParam()).first;
  testing::backward({out}, {grad});
  EXPECT_NEAR((out * grad).sum().item<double>(), (x * q.grad()).sum().item<double>(), 1e-11);
  EXPECT_LT(difference(q.grad(), detail::rotate_aten(grad, cos, sin, GetParam(), detail::RotaryPass::kBackward)),
            1e-14);
  EXPECT_LT(difference(out, detail::rotate_aten(x, cos, sin, GetParam(), detail::RotaryPass::kForward)), 1e-14);
}

TEST_P(Rotary, Rounds_once_in_bf16) {
  const at::Tensor x = values({2, 8, 2, 64}, 1, at::kBFloat16);
  const at::Tensor angle = values({2, 8, 32}, 2);
  const at::Tensor cos = table(angle, GetParam()).cos();
  const at::Tensor sin = table(angle, GetParam()).sin();
  const at::Tensor once = composition(x.to(at::kDouble), angle, GetParam()).to(at::kBFloat16);
  const at::Tensor out = apply_rotary(x, x, cos, sin, GetParam()).first;
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_LT((out != once).sum().item<std::int64_t>(), 3);  // fp32 next to a tie of bf16
}

TEST_P(Rotary, Computes_only_the_gradients_asked_for) {
  const at::Tensor q = leaf(values({1, 2, 1, 4}, 1));
  const at::Tensor k = leaf(values({1, 2, 1, 4}, 2));
  const auto rotated = apply_rotary(q, k, values({1, 2, 4}, 3), values({1, 2, 4}, 4), GetParam());
  testing::backward({rotated.second}, {values({1, 2, 1, 4}, 5)});
  EXPECT_FALSE(q.grad().defined());
  EXPECT_TRUE(k.grad().defined());
}

TEST_P(Rotary, Refuses_what_does_not_fit) {
  const at::Tensor x = values({2, 3, 2, 8}, 1);
  const at::Tensor wide = values({2, 3, 10}, 2);
  const at::Tensor odd = values({2, 3, 3}, 2);
  const at::Tensor fits = values({2, 3, 8}, 2);
  EXPECT_THROW((void)apply_rotary(x, x, wide, wide, GetParam()), ConfigError);
  EXPECT_THROW((void)apply_rotary(x, x, odd, odd, GetParam()), ConfigError);
  EXPECT_THROW((void)apply_rotary(x, values({2, 4, 2, 8}, 3), fits, fits, GetParam()), ConfigError);
  EXPECT_THROW((void)apply_rotary(x, x, leaf(fits), fits, GetParam()), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::rotary_test
