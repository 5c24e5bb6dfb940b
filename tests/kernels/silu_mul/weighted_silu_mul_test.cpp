#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/common/column_slices.h"
#include "d9d/kernels/silu_mul/silu_mul.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/op_testing.h"

namespace d9d::kernels::weighted_silu_mul_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::kGpu;
using ::d9d::testing::leaf;
using ::d9d::testing::values;
using ::d9d::testing::worst_difference;
using Tensors = std::vector<at::Tensor>;

class WeightedSiluMulCuda : public testing::CudaTest {};

Tensors op(const Tensors& in) { return {weighted_silu_mul(in[0], in[1], in[2])}; }

// Experts' outputs would be weighted like this after the linear map.
Tensors composition(const Tensors& in) {
  return {at::silu(in[0]) * in[1] * in[2].to(in[0].scalar_type()).unsqueeze(1)};
}

Tensors inputs(std::int64_t num_rows, std::int64_t num_columns, at::ScalarType dtype, at::ScalarType weights_dtype) {
  return {values({num_rows, num_columns}, 1, dtype), values({num_rows, num_columns}, 2, dtype),
          values({num_rows}, 3, weights_dtype)};
}

TEST(WeightedSiluMul, Equals_the_composition) {
  for (const std::int64_t num_rows : {0, 1, 7})
    for (const std::int64_t num_columns : {0, 1, 13})
      EXPECT_LT(worst_difference(op, composition, inputs(num_rows, num_columns, at::kDouble, at::kDouble)), 1e-14);
  EXPECT_LT(worst_difference(op, composition, inputs(5, 8, at::kFloat, at::kFloat)), 1e-6);
}

TEST(WeightedSiluMul, Refuses_what_does_not_fit) {
  const Tensors in = inputs(3, 4, at::kFloat, at::kFloat);
  EXPECT_THROW((void)weighted_silu_mul(in[0], in[1].narrow(1, 0, 3), in[2]), ConfigError);
  EXPECT_THROW((void)weighted_silu_mul(in[0], in[1], in[2].narrow(0, 0, 2)), ConfigError);
  EXPECT_THROW((void)weighted_silu_mul(in[0], in[1].to(at::kDouble), in[2]), ConfigError);
}

using Results = std::map<std::string, at::Tensor>;
Results run(const std::function<Tensors(const Tensors&)>& function, const Tensors& numbers, at::ScalarType dtype) {
  Tensors leaves;
  for (const at::Tensor& tensor : numbers) leaves.push_back(leaf(tensor.to(kGpu, dtype)));
  const at::Tensor out = function(leaves)[0];
  backward({out}, {values(out.sizes(), 9, at::kBFloat16).to(out.options())});
  return {{"out", out.detach()}, {"gate", leaves[0].grad()}, {"up", leaves[1].grad()}, {"weights", leaves[2].grad()}};
}

TEST_F(WeightedSiluMulCuda, Is_as_exact_as_aten_for_every_shape) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t num_rows : {0, 1, 31, 33, 200})
      for (const std::int64_t num_columns : {1, 7, 8, 31, 33, 256, 768, 1000}) {
        if (num_rows == 1 && dtype == at::kFloat)
          continue;  // which of two sums is nearer to the exact one is arbitrary
        SCOPED_TRACE(cat(dtype, " ", num_rows, " x ", num_columns));
        const Tensors numbers = inputs(num_rows, num_columns, at::kHalf, at::kHalf);
        const Results exact = run(composition, numbers, at::kDouble);
        const Results actual = run(op, numbers, dtype);
        if (dtype == at::kDouble) {
          for (const auto& [name, tensor] : exact) EXPECT_LT(testing::difference(actual.at(name), tensor), 1e-13);
        } else {
          testing::expect_no_worse(actual, run(composition, numbers, dtype), exact);
        }
      }
  }
}

TEST_F(WeightedSiluMulCuda, Takes_strided_inputs_wide_weights_and_is_bit_equal_from_run_to_run) {
  const at::Tensor both = values({40, 2, 64}, 1, at::kBFloat16).to(kGpu);
  const at::Tensor weights = values({80}, 2, at::kFloat).to(kGpu).slice(0, 0, 80, 2);
  const auto result = [&](bool is_contiguous) {
    const at::Tensor gate = leaf(both.select(1, 0)), up = leaf(both.select(1, 1)), weight = leaf(weights);
    const at::Tensor out = is_contiguous ? weighted_silu_mul(gate.contiguous(), up.contiguous(), weight.contiguous())
                                         : weighted_silu_mul(gate, up, weight);
    backward({out}, {values({64, 40}, 3, at::kBFloat16).to(kGpu).t()});
    EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
    return Tensors{out.detach(), gate.grad(), up.grad(), weight.grad()};
  };
  const Tensors first = result(false), second = result(true);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], second[i])) << i;
}

TEST_F(WeightedSiluMulCuda, Gives_halves_of_one_buffer_to_halves_of_one_projection) {
  for (const std::int64_t num_columns : {64, 33}) {
    const at::Tensor both = values({40, 2 * num_columns}, 1, at::kBFloat16).to(kGpu);
    const at::Tensor weights = values({40}, 2, at::kFloat).to(kGpu);
    const at::Tensor grad = values({40, num_columns}, 3, at::kBFloat16).to(kGpu);
    const auto gradients = [&](const at::Tensor& gate, const at::Tensor& up) {
      return torch::autograd::grad({weighted_silu_mul(gate, up, weights)}, {gate, up}, {grad});
    };
    const auto half = [&](std::int64_t i) { return both.narrow(1, i * num_columns, num_columns); };
    const auto of_halves = gradients(half(0).requires_grad_(), half(1).requires_grad_());
    const auto apart = gradients(leaf(half(0).contiguous()), leaf(half(1).contiguous()));
    EXPECT_TRUE(detail::are_adjacent_columns(of_halves[0], of_halves[1], 1));
    EXPECT_TRUE(at::equal(of_halves[0], apart[0]) && at::equal(of_halves[1], apart[1]));
  }
}

}  // namespace
}  // namespace d9d::kernels::weighted_silu_mul_test
