#include <ATen/ATen.h>

#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/norm_rotary/norm_rotary.h"
#include "d9d/kernels/rotary/rotary_impl.h"

#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::norm_rotary_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::fits_into_memory;
using ::d9d::testing::kDtypes;
using ::d9d::testing::same_bits;
using ::d9d::testing::worse_than_composition;
using Tensors = std::vector<at::Tensor>;

class NormRotaryCuda : public testing::CudaTest, public ::testing::WithParamInterface<RotaryStyle> {
 protected:
  [[nodiscard]] NormRotaryOptions options(bool zero_centered = false) const {
    return {.style = GetParam(), .eps = 1e-5, .zero_centered = zero_centered};
  }

  // A composition of operators whose backward autograd knows; rounded once, at the end.
  [[nodiscard]] at::Tensor composition(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& cos,
                                       const at::Tensor& sin, bool zero_centered) const {
    const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor x_wide = x.to(wide);
    const at::Tensor scale = weight.to(wide) + (zero_centered ? 1.0 : 0.0);
    const at::Tensor normed = x_wide * (x_wide.square().mean(-1, true) + 1e-5).rsqrt() * scale;
    return detail::rotate_aten(normed, cos.to(wide), sin.to(wide), GetParam(), detail::RotaryPass::kForward)
        .to(x.scalar_type());
  }

  // Inputs: q, k, and their weights.
  [[nodiscard]] std::string worse(const Tensors& inputs, const at::Tensor& cos, const at::Tensor& sin,
                                  bool zero_centered = false) const {
    return worse_than_composition(
        [&](const auto& in) {
          const auto [q, k] = norm_rotary(in[0], in[1], in[2], in[3], cos, sin, options(zero_centered));
          return Tensors{q, k};
        },
        [&](const auto& in) {
          return Tensors{composition(in[0], in[2], cos, sin, zero_centered),
                         composition(in[1], in[3], cos, sin, zero_centered)};
        },
        inputs);
  }
};
INSTANTIATE_TEST_SUITE_P(Styles, NormRotaryCuda, ::testing::Values(RotaryStyle::kHalf, RotaryStyle::kInterleaved),
                         [](const auto& test) { return test.param == RotaryStyle::kHalf ? "Half" : "Interleaved"; });

struct Shape {
  std::int64_t batch, sequence, q_heads, k_heads, head_dim, rotary_dim;
};

TEST_P(NormRotaryCuda, Errs_no_more_than_ATen_for_every_shape) {
  for (const at::ScalarType dtype : kDtypes)
    for (const Shape& s :
         {Shape{1, 1, 1, 1, 2, 2}, Shape{2, 3, 4, 2, 8, 8}, Shape{2, 5, 3, 1, 34, 34}, Shape{1, 4, 2, 2, 5, 0},
          Shape{0, 3, 2, 2, 16, 16}, Shape{2, 0, 2, 2, 16, 16}, Shape{2, 3, 0, 2, 16, 16}, Shape{2, 3, 2, 2, 16, 16},
          Shape{2, 33, 16, 8, 128, 128}, Shape{2, 33, 5, 1, 64, 64}, Shape{1, 31, 6, 3, 96, 64},
          Shape{1, 7, 4, 4, 72, 64}, Shape{1, 7, 4, 4, 40, 32}, Shape{1, 32, 32, 4, 256, 64},
          Shape{1, 9, 7, 5, 512, 512}, Shape{2, 700, 4, 2, 128, 128}, Shape{3, 1500, 1, 7, 64, 32}})
      for (const std::int64_t table_batch : {std::int64_t{1}, s.batch})
        EXPECT_EQ(worse({device_values({s.batch, s.sequence, s.q_heads, s.head_dim}, 1, dtype),
                         device_values({s.batch, s.sequence, s.k_heads, s.head_dim}, 2, dtype),
                         device_values({s.head_dim}, 3, dtype), device_values({s.head_dim}, 4, dtype)},
                        device_values({table_batch, s.sequence, s.rotary_dim}, 5, at::kFloat),
                        device_values({table_batch, s.sequence, s.rotary_dim}, 6, at::kFloat), s.sequence % 2 == 0),
                  "")
            << dtype << " " << s.batch << " " << s.sequence << " " << s.head_dim << " " << s.rotary_dim;
}

TEST_P(NormRotaryCuda, Takes_weights_and_tables_of_every_dtype) {
  for (const at::ScalarType dtype : kDtypes)
    for (const at::ScalarType other : kDtypes)
      for (const at::ScalarType k_weight : {dtype, other})
        EXPECT_EQ(worse({device_values({2, 9, 4, 64}, 1, dtype), device_values({2, 9, 2, 64}, 2, dtype),
                         device_values({64}, 3, other), device_values({64}, 4, k_weight)},
                        device_values({2, 9, 64}, 5, k_weight), device_values({2, 9, 64}, 6, other), true),
                  "")
            << dtype << " " << other << " " << k_weight;
}

TEST_P(NormRotaryCuda, Takes_strides_of_every_kind) {
  const at::Tensor cos = device_values({2, 9, 32}, 3);
  const at::Tensor sin = device_values({2, 9, 64}, 4).slice(2, 0, 64, 2);
  const Tensors weights = {device_values({32}, 5, at::kFloat), device_values({64}, 6, at::kFloat).slice(0, 0, 64, 2)};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const at::Tensor heads_first = device_values({2, 4, 9, 32}, 2, dtype).transpose(1, 2);
    const at::Tensor channels_strided = device_values({2, 9, 32, 3}, 5, dtype).transpose(2, 3);
    EXPECT_EQ(worse({heads_first, heads_first.slice(2, 0, 4, 3), weights[0], weights[0]}, cos, sin), "") << dtype;
    EXPECT_EQ(worse({heads_first, channels_strided, weights[0], weights[1]}, cos, sin), "") << dtype;
  }
}

TEST_P(NormRotaryCuda, Takes_views_that_are_not_aligned) {
  const at::Tensor cos = device_values({1, 5, 16}, 3);
  const auto view = [](const at::Tensor& flat) { return flat.narrow(0, 1, 5 * 2 * 16).view({1, 5, 2, 16}); };
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    EXPECT_EQ(worse_than_composition(
                  [&](const auto& in) {
                    return Tensors{norm_rotary(view(in[0]), view(in[0]), in[1], in[1], cos, cos, options()).second};
                  },
                  [&](const auto& in) { return Tensors{composition(view(in[0]), in[1], cos, cos, false)}; },
                  {device_values({161}, 1, dtype), device_values({16}, 2, dtype)}),
              "")
        << dtype;
}

// Tests the projection and the gradients of its parts.
TEST_P(NormRotaryCuda, Gives_parts_of_one_buffer_to_parts_of_one_projection) {
  const at::Tensor cos = device_values({2, 37, 64}, 3, at::kBFloat16);
  const at::Tensor sin = device_values({2, 37, 64}, 4, at::kBFloat16);
  const auto heads = [](const at::Tensor& qkv, std::int64_t first, std::int64_t count) {
    return qkv.narrow(-1, first * 64, count * 64).unflatten(-1, {count, 64});
  };
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    EXPECT_EQ(
        worse_than_composition(
            [&](const auto& in) {
              const auto [q, k] =
                  norm_rotary(heads(in[0], 0, 6), heads(in[0], 6, 3), in[1], in[2], cos, sin, options());
              return Tensors{q, k};
            },
            [&](const auto& in) {
              return Tensors{composition(heads(in[0], 0, 6), in[1], cos, sin, false),
                             composition(heads(in[0], 6, 3), in[2], cos, sin, false)};
            },
            {device_values({2, 37, 12 * 64}, 1, dtype), device_values({64}, 2, dtype), device_values({64}, 3, dtype)}),
        "")
        << dtype;
  const at::Tensor qkv = device_values({2, 37, 12 * 64}, 1, at::kBFloat16);
  const at::Tensor q = heads(qkv, 0, 6).requires_grad_();
  const at::Tensor k = heads(qkv, 6, 3).requires_grad_();
  const at::Tensor weight = device_values({64}, 2, at::kBFloat16);
  const auto [q_out, k_out] = norm_rotary(q, k, weight, weight, cos, sin, options());
  const auto grads = torch::autograd::grad({q_out, k_out}, {q, k}, {at::ones_like(q_out), at::ones_like(k_out)});
  EXPECT_TRUE(q_out.is_contiguous() && k_out.is_contiguous());
  EXPECT_TRUE(detail::are_adjacent_columns(grads[0], grads[1], 2));
  EXPECT_EQ(grads[0].stride(1), 9 * 64);
}

TEST_P(NormRotaryCuda, Computes_only_the_gradients_asked_for) {
  const at::Tensor cos = device_values({1, 50, 64}, 3);
  const Tensors values = {device_values({1, 50, 4, 64}, 1, at::kBFloat16),
                          device_values({1, 50, 2, 64}, 2, at::kBFloat16), device_values({64}, 4, at::kBFloat16),
                          device_values({64}, 5, at::kBFloat16)};
  const Tensors grads = {values[0].clone(), values[1].clone()};
  const auto run = [&](const Tensors& in) {
    const auto [q, k] = norm_rotary(in[0], in[1], in[2], in[3], cos, cos, options());
    return Tensors{q, k};
  };
  Tensors leaves;
  for (const at::Tensor& each : values) leaves.push_back(testing::leaf(each));
  const Tensors all = torch::autograd::grad(run(leaves), leaves, grads);
  for (std::size_t i = 0; i < values.size(); ++i) {
    Tensors inputs = values;
    inputs[i] = testing::leaf(values[i]);
    testing::backward({run(inputs)[i % 2]}, {grads[i % 2]});
    // A backward of only one of q and k distributes its sums over heads over other blocks.
    if (i < 2) {
      EXPECT_TRUE(at::equal(all[i], inputs[i].grad())) << i;
    } else {
      EXPECT_LT(testing::difference(inputs[i].grad(), all[i]), 0x1p-7) << i;
    }
  }
}

TEST_P(NormRotaryCuda, Counts_more_than_two_to_the_31_elements) {
  const bool fits = fits_into_memory([&] {
    const std::int64_t length = (std::int64_t{1} << 31) / (32 * 128) + 5;
    const at::Tensor tail = device_values({1, 7, 32, 128}, 1, at::kBFloat16);
    const at::Tensor table = device_values({1, 7, 128}, 2, at::kBFloat16);
    const at::Tensor weight = device_values({128}, 3, at::kBFloat16);
    at::Tensor q = at::ones({1, length, 32, 128}, tail.options());
    at::Tensor cos = at::ones({1, length, 128}, tail.options());
    q.narrow(1, length - 7, 7).copy_(tail);
    cos.narrow(1, length - 7, 7).copy_(table);
    q.requires_grad_();
    const auto of_all = norm_rotary(q, q.narrow(2, 0, 4), weight, weight, cos, cos, options());
    const at::Tensor tail_leaf = testing::leaf(tail);
    const auto of_tail = norm_rotary(tail_leaf, tail_leaf.narrow(2, 0, 4), weight, weight, table, table, options());
    EXPECT_TRUE(at::equal(of_all.first.narrow(1, length - 7, 7), of_tail.first));
    EXPECT_TRUE(at::equal(of_all.second.narrow(1, length - 7, 7), of_tail.second));
    testing::backward({of_all.first}, {at::ones_like(of_all.first)});
    testing::backward({of_tail.first}, {at::ones_like(of_tail.first)});
    EXPECT_TRUE(at::equal(q.grad().narrow(1, length - 7, 7), tail_leaf.grad()));
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

}  // namespace
}  // namespace d9d::kernels::norm_rotary_cuda_test
