#include <ATen/ATen.h>

#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/silu_mul/silu_mul.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear_impl.h"

#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::silu_mul_linear_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::expect_no_worse;
using ::d9d::testing::fits_into_memory;
using ::d9d::testing::leaf;
using ::d9d::testing::same_bits;
using Tensors = std::vector<at::Tensor>;

class SiluMulLinearCuda : public testing::CudaTest {};

// The gradients of gate and up [T, F] as ATen composes them, in `dtype`.
Tensors composition(const at::Tensor& grad_out, const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight,
                    at::ScalarType dtype) {
  const at::Tensor g = leaf(gate.to(dtype)), u = leaf(up.to(dtype));
  return torch::autograd::grad({at::linear(at::silu(g) * u, weight.to(dtype))}, {g, u}, {grad_out.to(dtype)});
}

struct Case {
  at::Tensor grad_out, gate, up, weight;
};

Case halves_of_one_projection(std::int64_t num_rows, std::int64_t num_features, std::int64_t num_outputs) {
  const at::Tensor fused = device_values({num_rows, 2 * num_features}, 1, at::kBFloat16) * 4;
  return {.grad_out = device_values({num_rows, num_outputs}, 2, at::kBFloat16),
          .gate = fused.narrow(1, 0, num_features),
          .up = fused.narrow(1, num_features, num_features),
          .weight = device_values({num_outputs, num_features}, 3, at::kBFloat16)};
}

void expect_gradients(const Case& c) {
  ASSERT_TRUE(detail::fits_silu_mul_linear_kernel(c.gate, c.up, c.weight));
  const auto [gate, up, product] =
      detail::silu_mul_linear_backward_cuda(c.grad_out, c.gate, c.up, c.weight, /*wants_product=*/true);
  EXPECT_TRUE(same_bits({product}, {silu_mul(c.gate, c.up)}));
  const Tensors peer = composition(c.grad_out, c.gate, c.up, c.weight, at::kBFloat16);
  const Tensors exact = composition(c.grad_out, c.gate, c.up, c.weight, at::kDouble);
  expect_no_worse({{"gate", gate}, {"up", up}}, {{"gate", peer[0]}, {"up", peer[1]}},
                  {{"gate", exact[0]}, {"up", exact[1]}});
  const auto again = detail::silu_mul_linear_backward_cuda(c.grad_out, c.gate, c.up, c.weight, /*wants_product=*/false);
  EXPECT_FALSE(again.product.defined());
  EXPECT_TRUE(same_bits({gate, up}, {again.gate, again.up}));
}

TEST_F(SiluMulLinearCuda, Errs_no_more_than_ATen_for_every_number_of_rows) {
  for (const std::int64_t num_rows : {1, 7, 63, 64, 65, 127, 128, 129, 255, 256, 257, 320, 511, 513, 4099}) {
    SCOPED_TRACE(num_rows);
    expect_gradients(halves_of_one_projection(num_rows, 768, 256));
  }
}

TEST_F(SiluMulLinearCuda, Errs_no_more_than_ATen_for_every_number_of_features) {
  for (const std::int64_t num_features : {8, 56, 64, 72, 128, 136, 248, 256, 264, 1544})
    for (const std::int64_t num_outputs : {8, 64, 72, 200, 256, 1032}) {
      SCOPED_TRACE(std::to_string(num_features) + " to " + std::to_string(num_outputs));
      expect_gradients(halves_of_one_projection(300, num_features, num_outputs));
    }
}

TEST_F(SiluMulLinearCuda, Takes_gate_and_up_of_their_own_and_writes_nothing_else) {
  Case c = halves_of_one_projection(300, 264, 72);
  c.gate = c.gate.contiguous();
  expect_gradients(c);
  c.up = c.up.contiguous();
  expect_gradients(c);
}

TEST_F(SiluMulLinearCuda, Gives_halves_of_one_buffer_to_halves_of_one_projection) {
  const Case c = halves_of_one_projection(300, 264, 72);
  const auto [gate, up, product] =
      detail::silu_mul_linear_backward_cuda(c.grad_out, c.gate, c.up, c.weight, /*wants_product=*/false);
  EXPECT_TRUE(detail::are_adjacent_columns(gate, up, 1));
  EXPECT_EQ(gate.stride(0), 2 * 264);
}

TEST_F(SiluMulLinearCuda, Of_many_rows_is_the_product_of_silu_mul_with_every_gradient) {
  const auto run = [](at::ScalarType dtype, const auto& op) {
    const at::Tensor fused = leaf(device_values({2, 2048, 2 * 2048}, 1, at::kBFloat16).to(dtype));
    const at::Tensor weight = leaf(device_values({512, 2048}, 2, at::kBFloat16).to(dtype));
    const at::Tensor out = op(fused.narrow(2, 0, 2048), fused.narrow(2, 2048, 2048), weight);
    const at::Tensor grad = device_values({2, 2048, 512}, 3, at::kBFloat16).to(dtype);
    const Tensors grads = torch::autograd::grad({out}, {fused, weight}, {grad});
    return std::map<std::string, at::Tensor>{{"out", out.detach()}, {"fused", grads[0]}, {"weight", grads[1]}};
  };
  const auto of_aten = [](const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight) {
    return at::linear(at::silu(gate) * up, weight);
  };
  const auto ours = [](const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight) {
    return silu_mul_linear(gate, up, weight);
  };
  expect_no_worse(run(at::kBFloat16, ours), run(at::kBFloat16, of_aten), run(at::kDouble, of_aten));
}

// The kernel takes ranks that are multiples of 8; those above 64 have several stages.
TEST_F(SiluMulLinearCuda, With_a_term_errs_no_more_than_ATen_in_every_gradient) {
  for (const std::int64_t rank : {8, 16, 72, 12}) {
    SCOPED_TRACE(rank);
    const auto run = [rank](at::ScalarType dtype, const auto& op) {
      const at::Tensor fused = leaf(device_values({4096, 2 * 2048}, 1, at::kBFloat16).to(dtype));
      const Tensors weights = {leaf(device_values({512, 2048}, 2, at::kBFloat16).to(dtype)),
                               leaf(device_values({rank, 2048}, 3, at::kBFloat16).to(dtype)),
                               leaf(device_values({512, rank}, 4, at::kBFloat16).to(dtype))};
      const at::Tensor out = op(fused.narrow(1, 0, 2048), fused.narrow(1, 2048, 2048), weights);
      const at::Tensor grad = device_values({4096, 512}, 5, at::kBFloat16).to(dtype);
      const Tensors grads = torch::autograd::grad({out}, {fused, weights[0], weights[1], weights[2]}, {grad});
      return std::map<std::string, at::Tensor>{
          {"out", out.detach()}, {"fused", grads[0]}, {"weight", grads[1]}, {"A", grads[2]}, {"B", grads[3]}};
    };
    const auto ours = [](const at::Tensor& gate, const at::Tensor& up, const Tensors& weights) {
      return silu_mul_linear(gate, up, weights[0], {{.a = weights[1], .b = weights[2], .scale = 2.0}});
    };
    const auto of_aten = [](const at::Tensor& gate, const at::Tensor& up, const Tensors& weights) {
      const at::Tensor product = at::silu(gate) * up;
      return at::linear(product, weights[0]) + 2.0 * at::linear(at::linear(product, weights[1]), weights[2]);
    };
    expect_no_worse(run(at::kBFloat16, ours), run(at::kBFloat16, of_aten), run(at::kDouble, of_aten));
  }
}

TEST_F(SiluMulLinearCuda, Adds_the_gradient_of_the_weight_to_its_place) {
  const at::Tensor gate = leaf(device_values({4096, 2048}, 1, at::kBFloat16));
  const at::Tensor up = leaf(device_values({4096, 2048}, 2, at::kBFloat16));
  const at::Tensor weight = leaf(device_values({256, 2048}, 3, at::kBFloat16));
  const at::Tensor place = at::ones({256, 2048}, weight.options().dtype(at::kFloat));
  const GradientHookHandle hook = on_gradient(weight, {.arrived = [](const at::Tensor&) {},
                                                       .place =
                                                           [&] {
                                                             return GradientPlace{place, true};
                                                           }});
  const at::Tensor grad = device_values({4096, 256}, 4, at::kBFloat16);
  silu_mul_linear(gate, up, weight).backward(grad);
  const at::Tensor expected = at::mm(grad.to(at::kDouble).t(), silu_mul(gate, up).detach().to(at::kDouble)) + 1;
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_LT(testing::difference(place, expected) / expected.abs().max().item<double>(), 1e-5);
}

TEST_F(SiluMulLinearCuda, Counts_more_than_two_to_the_31_elements) {
  const bool fits = fits_into_memory([] {
    constexpr std::int64_t kFeatures = 16384, kRows = (std::int64_t{1} << 31) / kFeatures + 8, kTail = 8;
    const Case tail = halves_of_one_projection(kTail, kFeatures, 64);
    const at::Tensor fused = at::ones({kRows, 2 * kFeatures}, tail.gate.options());
    const at::Tensor grad_out = at::ones({kRows, 64}, tail.gate.options());
    const auto last = [](const at::Tensor& rows) { return rows.narrow(0, rows.size(0) - kTail, kTail); };
    last(fused).copy_(at::cat({tail.gate, tail.up}, 1));
    last(grad_out).copy_(tail.grad_out);
    const auto of_all = detail::silu_mul_linear_backward_cuda(
        grad_out, fused.narrow(1, 0, kFeatures), fused.narrow(1, kFeatures, kFeatures), tail.weight, false);
    const auto of_tail = detail::silu_mul_linear_backward_cuda(tail.grad_out, tail.gate, tail.up, tail.weight, false);
    EXPECT_TRUE(same_bits({last(of_all.gate), last(of_all.up)}, {of_tail.gate, of_tail.up}));
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

TEST_F(SiluMulLinearCuda, Leaves_to_others_what_the_kernel_does_not_take) {
  const Case c = halves_of_one_projection(300, 264, 72);
  EXPECT_FALSE(detail::fits_silu_mul_linear_kernel(c.gate.to(at::kHalf), c.up.to(at::kHalf), c.weight.to(at::kHalf)));
  EXPECT_FALSE(detail::fits_silu_mul_linear_kernel(c.gate.narrow(1, 1, 256), c.up.narrow(1, 0, 256),
                                                   c.weight.narrow(1, 0, 256)));
  EXPECT_FALSE(detail::fits_silu_mul_linear_kernel(c.gate, c.up, c.weight.t().contiguous().t()));
  EXPECT_FALSE(detail::fits_silu_mul_linear_kernel(c.gate.narrow(0, 0, 0), c.up.narrow(0, 0, 0), c.weight));
}

}  // namespace
}  // namespace d9d::kernels::silu_mul_linear_cuda_test
