#include "d9d/kernels/silu_mul/silu_mul.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/silu_mul/silu_mul_impl.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::silu_mul_test {
namespace {

using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;
using ::d9d::testing::worst_difference;

at::Tensor composition(const at::Tensor& gate, const at::Tensor& up) {
  const at::ScalarType wide = gate.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return (gate.to(wide) / (1 + at::exp(-gate.to(wide))) * up.to(wide)).to(gate.scalar_type());
}

double error_against_composition(const at::Tensor& gate, const at::Tensor& up) {
  return worst_difference([](const auto& in) { return std::vector{silu_mul(in[0], in[1])}; },
                          [](const auto& in) { return std::vector{composition(in[0], in[1])}; }, {gate, up});
}

TEST(SiluMul, Equals_the_composition_in_fp64_for_every_shape) {
  const std::vector<std::vector<std::int64_t>> shapes = {{}, {0}, {1}, {7}, {8}, {3, 5, 11}, {0, 4}, {130, 129}};
  for (const auto& shape : shapes)
    EXPECT_LT(error_against_composition(values(shape, 1), values(shape, 2)), 1e-14) << at::IntArrayRef(shape);
}

TEST(SiluMul, Equals_the_composition_in_fp32_over_the_whole_range) {
  const at::Tensor gate = at::linspace(-110, 110, 4001, at::kFloat);
  const auto in_fp64 = [](const auto& in) {
    return std::vector{composition(in[0].to(at::kDouble), in[1].to(at::kDouble)).to(at::kFloat)};
  };
  EXPECT_LT(worst_difference([](const auto& in) { return std::vector{silu_mul(in[0], in[1])}; }, in_fp64,
                             {gate, at::ones_like(gate)}),
            1e-6);
}

TEST(SiluMul, Keeps_what_is_not_finite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor gate = at::tensor({infinity, std::nan("")}).to(dtype);
    const at::Tensor out = silu_mul(gate, at::ones_like(gate));
    EXPECT_EQ(out[0].item<double>(), infinity);
    EXPECT_TRUE(std::isnan(out[1].item<double>()));
  }
}

TEST(SiluMul, Rounds_once_in_bf16) {
  const at::Tensor gate = values({5000}, 1, at::kBFloat16);
  const at::Tensor up = values({5000}, 2, at::kBFloat16);
  const at::Tensor once = composition(gate.to(at::kDouble), up.to(at::kDouble)).to(at::kBFloat16);
  EXPECT_LT((silu_mul(gate, up) != once).sum().item<std::int64_t>(), 3);  // fp32 next to a tie of bf16
  EXPECT_LT(error_against_composition(gate, up), 8e-3);
}

TEST(SiluMul, Takes_the_halves_of_a_fused_projection) {
  const auto split = [](const at::Tensor& fused) { return fused.chunk(2, -1); };
  EXPECT_LT(worst_difference([&](const auto& in) { return std::vector{silu_mul(split(in[0])[0], split(in[0])[1])}; },
                             [&](const auto& in) { return std::vector{composition(split(in[0])[0], split(in[0])[1])}; },
                             {values({9, 14}, 1)}),
            1e-14);
}

TEST(SiluMul, ATen_equals_the_cpu_loops) {
  const at::Tensor gate = values({333}, 1, at::kFloat);
  const at::Tensor up = values({333}, 2, at::kFloat);
  const at::Tensor grad = values({333}, 3, at::kFloat);
  const at::Tensor gate_leaf = leaf(gate);
  const at::Tensor up_leaf = leaf(up);
  const at::Tensor out = silu_mul(gate_leaf, up_leaf);
  testing::backward({out}, {grad});
  const auto backward = detail::silu_mul_backward_aten(grad, gate, up, {.gate = true, .up = true});
  EXPECT_LT(difference(detail::silu_mul_forward_aten(gate, up), out), 1e-6);
  EXPECT_LT(difference(backward.gate, gate_leaf.grad()), 1e-6);
  EXPECT_LT(difference(backward.up, up_leaf.grad()), 1e-6);
}

TEST(SiluMul, Computes_only_the_gradients_asked_for) {
  const at::Tensor gate = values({4}, 1);
  const at::Tensor up = leaf(values({4}, 2));
  testing::backward({silu_mul(gate, up)}, {values({4}, 3)});
  EXPECT_TRUE(up.grad().defined());
  EXPECT_FALSE(gate.grad().defined());
}

TEST(SiluMul, Refuses_what_does_not_fit) {
  EXPECT_THROW((void)silu_mul(values({3}, 1), values({4}, 2)), ConfigError);
  EXPECT_THROW((void)silu_mul(values({3}, 1), values({3}, 2, at::kFloat)), ConfigError);
  EXPECT_THROW((void)silu_mul(values({3}, 1), at::empty({3}, at::TensorOptions(at::kMeta).dtype(at::kDouble))),
               ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::silu_mul_test
