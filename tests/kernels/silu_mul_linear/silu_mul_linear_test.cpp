#include "d9d/kernels/silu_mul_linear/silu_mul_linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/device/meta_memory.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear_impl.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::silu_mul_linear_test {
namespace {

using ::d9d::testing::values;
using ::d9d::testing::worst_difference;
using Tensors = std::vector<at::Tensor>;

Tensors ours(const Tensors& in) { return {silu_mul_linear(in[0], in[1], in[2])}; }
Tensors composition(const Tensors& in) { return {at::linear(at::silu(in[0]) * in[1], in[2])}; }

TEST(SiluMulLinear, Equals_its_parts_for_every_shape) {
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{7}, {0, 7}, {1, 7}, {2, 3, 7}, {2, 0, 7}})
    EXPECT_LT(worst_difference(ours, composition, {values(shape, 1), values(shape, 2), values({4, 7}, 3)}), 1e-13)
        << at::IntArrayRef(shape);
}

TEST(SiluMulLinear, With_a_term_equals_its_parts) {
  const auto with_term = [](const Tensors& in) -> Tensors {
    return {silu_mul_linear(in[0], in[1], in[2], {{.a = in[3], .b = in[4], .scale = 0.5}})};
  };
  const auto parts = [](const Tensors& in) -> Tensors {
    const at::Tensor product = at::silu(in[0]) * in[1];
    return {at::linear(product, in[2]) + 0.5 * at::linear(at::linear(product, in[3]), in[4])};
  };
  EXPECT_LT(worst_difference(
                with_term, parts,
                {values({2, 3, 7}, 1), values({2, 3, 7}, 2), values({4, 7}, 3), values({2, 7}, 4), values({4, 2}, 5)}),
            1e-13);
}

TEST(SiluMulLinear, Refuses_shapes_and_dtypes_that_do_not_fit) {
  EXPECT_THROW((void)silu_mul_linear(values({3, 7}, 1), values({3, 6}, 2), values({4, 7}, 3)), ConfigError);
  EXPECT_THROW((void)silu_mul_linear(values({3, 7}, 1), values({3, 7}, 2), values({4, 6}, 3)), ConfigError);
  EXPECT_THROW((void)silu_mul_linear(values({3, 7}, 1), values({3, 7}, 2), values({4, 7}, 3, at::kFloat)), ConfigError);
}

// See benchmarks/results/products_h200_2026-11-22.md.
TEST(SiluMulLinear, Has_a_kernel_where_its_tiles_fill_the_device) {
  using detail::pays_silu_mul_linear_kernel;
  EXPECT_TRUE(pays_silu_mul_linear_kernel(8192, 6144));
  EXPECT_TRUE(pays_silu_mul_linear_kernel(2048, 6144));
  EXPECT_FALSE(pays_silu_mul_linear_kernel(1400, 6144));  // two rounds and a sixth
  EXPECT_FALSE(pays_silu_mul_linear_kernel(128, 6144));
  EXPECT_FALSE(pays_silu_mul_linear_kernel(8192, 8));
  EXPECT_FALSE(pays_silu_mul_linear_kernel(1, 1));
  EXPECT_TRUE(pays_silu_mul_linear_kernel(std::int64_t{1} << 30, 65536));
}

// What it keeps of a decoder's layer, as plans count it: the kernel makes the product again.
TEST(SiluMulLinear, Keeps_gate_and_up_alone_where_there_is_a_kernel) {
  const auto bf16 = at::TensorOptions(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor gate = at::empty({8192, 6144}, bf16).requires_grad_();
  const at::Tensor up = at::empty({8192, 6144}, bf16).requires_grad_();
  const at::Tensor weight = at::empty({2048, 6144}, bf16).requires_grad_();
  const at::Tensor a = at::empty({16, 6144}, bf16).requires_grad_();
  const at::Tensor b = at::empty({2048, 16}, bf16).requires_grad_();
  for (const bool has_term : {false, true}) {
    const MetaMemory memory;
    const at::Tensor out = silu_mul_linear(
        gate, up, weight, has_term ? std::vector<LowRankTerm>{{.a = a, .b = b}} : std::vector<LowRankTerm>());
    const std::int64_t hidden_bytes = has_term ? 8192 * 16 * 2 : 0;  // of the product with A
    EXPECT_EQ(memory.live_bytes(), static_cast<std::int64_t>(out.nbytes()) + hidden_bytes);
    out.backward(at::empty_like(out));
  }
  EXPECT_EQ(weight.grad().sizes(), weight.sizes());
  EXPECT_EQ(gate.grad().sizes(), gate.sizes());
  EXPECT_EQ(a.grad().sizes(), a.sizes());
  EXPECT_EQ(b.grad().sizes(), b.sizes());
}

}  // namespace
}  // namespace d9d::kernels::silu_mul_linear_test
