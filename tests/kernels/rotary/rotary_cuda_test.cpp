#include <ATen/ATen.h>

#include "d9d/kernels/rotary/rotary.h"
#include "d9d/kernels/rotary/rotary_impl.h"

#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::rotary_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::fits_into_memory;
using ::d9d::testing::kDtypes;
using ::d9d::testing::same_bits;
using ::d9d::testing::worse_than_composition;
using Tensors = std::vector<at::Tensor>;

class RotaryCuda : public testing::CudaTest, public ::testing::WithParamInterface<RotaryStyle> {};
INSTANTIATE_TEST_SUITE_P(Styles, RotaryCuda, ::testing::Values(RotaryStyle::kHalf, RotaryStyle::kInterleaved),
                         [](const auto& test) { return test.param == RotaryStyle::kHalf ? "Half" : "Interleaved"; });

// The ATen implementation as plain operators that autograd differentiates.
at::Tensor composition(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return detail::rotate_aten(x, cos.to(wide), sin.to(wide), style, detail::RotaryPass::kForward);
}

std::string worse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin,
                  RotaryStyle style) {
  return worse_than_composition(
      [&](const auto& in) {
        const auto [q_rotated, k_rotated] = apply_rotary(in[0], in[1], cos, sin, style);
        return Tensors{q_rotated, k_rotated};
      },
      [&](const auto& in) {
        return Tensors{composition(in[0], cos, sin, style), composition(in[1], cos, sin, style)};
      },
      {q, k});
}

struct Shape {
  std::int64_t batch, sequence, q_heads, k_heads, head_dim, rotary_dim;
};

TEST_P(RotaryCuda, Errs_no_more_than_ATen_for_every_shape) {
  for (const at::ScalarType dtype : kDtypes)
    for (const Shape& s :
         {Shape{1, 1, 1, 1, 2, 2}, Shape{2, 3, 4, 2, 8, 8}, Shape{2, 5, 3, 1, 34, 34}, Shape{2, 3, 2, 2, 10, 6},
          Shape{1, 4, 2, 2, 5, 0}, Shape{0, 3, 2, 2, 4, 4}, Shape{2, 0, 2, 2, 4, 4}, Shape{2, 3, 0, 2, 4, 2},
          Shape{2, 33, 16, 8, 128, 128}, Shape{2, 33, 5, 1, 64, 64}, Shape{1, 31, 6, 3, 96, 64},
          Shape{1, 7, 4, 4, 72, 64}, Shape{1, 7, 4, 4, 40, 32}, Shape{1, 32, 32, 4, 256, 64}})
      for (const std::int64_t table_batch : {std::int64_t{1}, s.batch})
        EXPECT_EQ(worse(device_values({s.batch, s.sequence, s.q_heads, s.head_dim}, 1, dtype),
                        device_values({s.batch, s.sequence, s.k_heads, s.head_dim}, 2, dtype),
                        device_values({table_batch, s.sequence, s.rotary_dim}, 3, at::kFloat),
                        device_values({table_batch, s.sequence, s.rotary_dim}, 4, at::kFloat), GetParam()),
                  "")
            << dtype << " " << s.batch << " " << s.sequence << " " << s.head_dim << " " << s.rotary_dim;
}

TEST_P(RotaryCuda, Takes_tables_of_every_dtype) {
  const at::Tensor q = device_values({2, 9, 4, 64}, 1, at::kBFloat16);
  for (const at::ScalarType cos_dtype : kDtypes)
    for (const at::ScalarType sin_dtype : kDtypes)
      EXPECT_EQ(worse(q, q.narrow(2, 0, 2), device_values({2, 9, 64}, 3, cos_dtype),
                      device_values({2, 9, 64}, 4, sin_dtype), GetParam()),
                "")
          << cos_dtype << " " << sin_dtype;
}

TEST_P(RotaryCuda, Takes_strides_of_every_kind) {
  const at::Tensor cos = device_values({2, 9, 32}, 3);
  const at::Tensor sin = device_values({2, 9, 64}, 4).slice(2, 0, 64, 2);
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor fused = device_values({2, 9, 12 * 32}, 1, dtype).unflatten(-1, {12, 32});
    EXPECT_EQ(worse(fused.narrow(2, 0, 6), fused.narrow(2, 6, 3), cos, sin, GetParam()), "") << dtype;
    const at::Tensor heads_first = device_values({2, 4, 9, 32}, 2, dtype).transpose(1, 2);
    const at::Tensor channels_strided = device_values({2, 9, 32, 3}, 5, dtype).transpose(2, 3);
    EXPECT_EQ(worse(heads_first, channels_strided, cos, sin, GetParam()), "") << dtype;
  }
}

TEST_P(RotaryCuda, Takes_views_that_are_not_aligned) {
  const at::Tensor cos = device_values({1, 5, 16}, 3);
  const auto view = [](const at::Tensor& flat) { return flat.narrow(0, 1, 5 * 2 * 16).view({1, 5, 2, 16}); };
  for (const at::ScalarType dtype : kDtypes)
    EXPECT_EQ(worse_than_composition(
                  [&](const auto& in) {
                    return Tensors{apply_rotary(view(in[0]), view(in[0]), cos, cos, GetParam()).second};
                  },
                  [&](const auto& in) { return Tensors{composition(view(in[0]), cos, cos, GetParam())}; },
                  {device_values({161}, 1, dtype)}),
              "")
        << dtype;
}

TEST_P(RotaryCuda, Computes_only_the_gradients_asked_for) {
  const at::Tensor q = testing::leaf(device_values({1, 5, 4, 64}, 1, at::kBFloat16));
  const at::Tensor k = testing::leaf(device_values({1, 5, 2, 64}, 2, at::kBFloat16));
  const at::Tensor cos = device_values({1, 5, 64}, 3);
  const auto rotated = apply_rotary(q, k, cos, cos, GetParam());
  const auto both = torch::autograd::grad({rotated.first, rotated.second}, {q, k}, {q.detach(), k.detach()});
  testing::backward({apply_rotary(q, k, cos, cos, GetParam()).second}, {k.detach()});
  EXPECT_FALSE(q.grad().defined());
  testing::backward({apply_rotary(q, k.detach(), cos, cos, GetParam()).first}, {q.detach()});
  EXPECT_TRUE(same_bits(both, {q.grad(), k.grad()}));
}

TEST_P(RotaryCuda, Counts_more_than_two_to_the_31_elements) {
  const bool fits = fits_into_memory([] {
    const std::int64_t length = (std::int64_t{1} << 31) / (32 * 128) + 5;
    const at::Tensor tail = device_values({1, 7, 32, 128}, 1, at::kBFloat16);
    const at::Tensor table = device_values({1, 7, 128}, 2, at::kBFloat16);
    at::Tensor q = at::ones({1, length, 32, 128}, tail.options());
    at::Tensor cos = at::ones({1, length, 128}, tail.options());
    q.narrow(1, length - 7, 7).copy_(tail);
    cos.narrow(1, length - 7, 7).copy_(table);
    const auto of_all = apply_rotary(q, q.narrow(2, 0, 1), cos, cos, GetParam());
    const auto of_tail = apply_rotary(tail, tail.narrow(2, 0, 1), table, table, GetParam());
    EXPECT_TRUE(at::equal(of_all.first.narrow(1, length - 7, 7), of_tail.first));
    EXPECT_TRUE(at::equal(of_all.second.narrow(1, length - 7, 7), of_tail.second));
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

}  // namespace
}  // namespace d9d::kernels::rotary_cuda_test
