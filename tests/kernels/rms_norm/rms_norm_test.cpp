#include "d9d/kernels/rms_norm/rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/rms_norm/rms_norm_impl.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::rms_norm_test {
namespace {

using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;
using ::d9d::testing::worst_difference;

at::Tensor composition(const at::Tensor& x, const at::Tensor& weight, double eps, bool zero_centered) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor x_wide = x.to(wide);
  const at::Tensor scale = weight.to(wide) + (zero_centered ? 1.0 : 0.0);
  return (x_wide / (x_wide.square().mean(-1, true) + eps).sqrt() * scale).to(x.scalar_type());
}

double error_against_composition(const at::Tensor& x, const at::Tensor& weight, bool zero_centered) {
  return worst_difference([&](const auto& in) { return std::vector{rms_norm(in[0], in[1], 1e-5, zero_centered)}; },
                          [&](const auto& in) { return std::vector{composition(in[0], in[1], 1e-5, zero_centered)}; },
                          {x, weight});
}

TEST(RmsNorm, Equals_the_golden_values) {
  const at::Tensor x = leaf(at::tensor({1.0, -2.0, 3.0, -4.0}).to(at::kFloat));
  const at::Tensor weight = leaf(at::tensor({0.5, 1.0, 1.5, 2.0}).to(at::kFloat));
  const at::Tensor out = rms_norm(x, weight, 1e-6);
  EXPECT_LT(difference(out, at::tensor({0.18257417, -0.73029669, 1.64316756, -2.92118678})), 1e-6);
  EXPECT_LT(difference(rms_norm(x, weight, 1e-6, /*zero_centered=*/true),
                       at::tensor({0.54772252, -1.46059339, 2.73861260, -4.38178017})),
            1e-6);
  testing::backward({out}, {at::ones({4})});
  EXPECT_LT(difference(weight.grad(), at::tensor({0.36514835, -0.73029669, 1.09544504, -1.46059339})), 1e-6);
  EXPECT_LT(difference(x.grad(), at::tensor({0.24343222, 0.24343225, 0.73029667, 0.48686450})), 1e-6);
}

TEST(RmsNorm, Equals_the_composition_in_fp64_for_every_shape) {
  const std::vector<std::vector<std::int64_t>> shapes = {{1},      {8},       {0, 5},     {1, 1},   {3, 7},
                                                         {40, 33}, {2, 0, 4}, {2, 3, 65}, {700, 16}};
  for (const auto& shape : shapes) {
    for (const bool zero_centered : {false, true}) {
      EXPECT_LT(error_against_composition(values(shape, 1), values({shape.back()}, 2), zero_centered), 1e-13)
          << at::IntArrayRef(shape);
    }
  }
}

TEST(RmsNorm, Equals_the_composition_in_fp32) {
  EXPECT_LT(error_against_composition(values({111, 333}, 1, at::kFloat), values({333}, 2, at::kFloat), true), 2e-6);
}

TEST(RmsNorm, Rounds_once_in_bf16) {
  const at::Tensor x = values({64, 100}, 1, at::kBFloat16);
  const at::Tensor weight = values({100}, 2, at::kBFloat16);
  const at::Tensor once = composition(x.to(at::kDouble), weight.to(at::kDouble), 1e-5, false).to(at::kBFloat16);
  EXPECT_LT((rms_norm(x, weight, 1e-5) != once).sum().item<std::int64_t>(), 3);  // fp32 next to a tie of bf16
  EXPECT_LT(error_against_composition(x, weight, false), 8e-3);
}

TEST(RmsNorm, Takes_a_weight_of_another_dtype) {
  EXPECT_LT(error_against_composition(values({6, 20}, 1, at::kBFloat16), values({20}, 2, at::kFloat), true), 8e-3);
}

TEST(RmsNorm, Takes_strided_inputs) {
  const at::Tensor x = values({24, 10}, 1).t();
  const at::Tensor weight = values({48}, 2).slice(0, 0, 48, 2);
  EXPECT_LT(error_against_composition(x, weight, false), 1e-13);
}

TEST(RmsNorm, Cpu_loops_equal_ATen) {
  const at::Tensor x = values({50, 37}, 1, at::kFloat);
  const at::Tensor scale = values({37}, 2, at::kFloat);
  const auto [out, inv_rms] = detail::rms_norm_forward_aten(x, scale, 1e-6);
  EXPECT_LT(difference(rms_norm(x, scale, 1e-6), out), 1e-6);
}

TEST(RmsNorm, Computes_only_the_gradients_asked_for) {
  const at::Tensor x = leaf(values({4, 6}, 1));
  const at::Tensor weight = values({6}, 2);
  testing::backward({rms_norm(x, weight)}, {values({4, 6}, 3)});
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

TEST(RmsNorm, Gradients_do_not_depend_on_the_number_of_threads) {
  const auto weight_gradient = [] {
    const at::Tensor x = leaf(values({300, 40}, 1, at::kFloat));
    const at::Tensor weight = leaf(values({40}, 2, at::kFloat));
    testing::backward({rms_norm(x, weight)}, {values({300, 40}, 3, at::kFloat)});
    return weight.grad();
  };
  const int num_threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = weight_gradient();
  at::set_num_threads(3);
  EXPECT_TRUE(at::equal(alone, weight_gradient()));
  at::set_num_threads(num_threads);
}

TEST(RmsNorm, Infers_shapes_on_meta) {
  const at::Tensor x = at::empty({3, 8}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  EXPECT_EQ(rms_norm(x, at::empty({8}, x.options())).sizes(), x.sizes());
}

TEST(RmsNorm, Refuses_what_does_not_fit) {
  EXPECT_THROW((void)rms_norm(values({3, 4}, 1), values({5}, 2)), ConfigError);
  EXPECT_THROW((void)rms_norm(values({3, 0}, 1), values({0}, 2)), ConfigError);
  EXPECT_THROW((void)rms_norm(at::ones({3, 4}, at::kLong), values({4}, 2)), ConfigError);
}

TEST(RmsNorm, Refuses_a_gradient_of_a_gradient) {
  const at::Tensor x = leaf(values({2, 4}, 1));
  const at::Tensor out = rms_norm(x, values({4}, 2));
  EXPECT_THROW(torch::autograd::grad({out.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true), UsageError);
}

}  // namespace
}  // namespace d9d::kernels::rms_norm_test
