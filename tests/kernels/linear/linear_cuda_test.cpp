#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/kernels/linear/linear.h"

#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::linear_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::kDtypes;
using ::d9d::testing::leaf;
using ::d9d::testing::worse_than_composition;

class LinearCuda : public ::d9d::testing::CudaTest {};

std::vector<at::Tensor> composition(const std::vector<at::Tensor>& in) {
  return {at::linear(in[0], in[1]), at::linear(in[0], in[2])};
}

TEST_F(LinearCuda, Errs_no_more_than_that_of_ATen) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t rows : {0, 1, 31, 130}) {
      const std::vector<at::Tensor> inputs = {device_values({rows, 64}, 1, dtype), device_values({48, 64}, 2, dtype),
                                              device_values({40, 64}, 3, dtype)};
      EXPECT_EQ(worse_than_composition(
                    [](const auto& in) {
                      return linears(in[0], {in[1], in[2]});
                    },
                    composition, inputs),
                "")
          << dtype << ' ' << rows;
    }
  }
}

TEST_F(LinearCuda, Terms_err_no_more_than_products_of_their_own) {
  const auto ours = [](const std::vector<at::Tensor>& in) {
    return linears(in[0], {in[1], in[2]}, {},
                   {{.a = in[3], .b = in[4], .scale = 2.0, .output = 0}, {.a = in[5], .b = in[6], .output = 1}});
  };
  const auto apart = [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {at::linear(in[0], in[1]) + 2.0 * at::linear(at::linear(in[0], in[3]), in[4]),
            at::linear(in[0], in[2]) + at::linear(at::linear(in[0], in[5]), in[6])};
  };
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t rows : {0, 1, 130}) {
      // Both weights are parts of one buffer, so that their outputs are slices of one.
      const auto weights = device_values({96, 64}, 2, dtype).split_with_sizes({32, 64}, 0);
      EXPECT_EQ(worse_than_composition(ours, apart,
                                       {device_values({rows, 64}, 1, dtype), weights[0], weights[1],
                                        device_values({8, 64}, 3, dtype), device_values({32, 8}, 4, dtype),
                                        device_values({16, 64}, 5, dtype), device_values({64, 16}, 6, dtype)}),
                "")
          << dtype << ' ' << rows;
    }
  }
}

// Weights, gradients of outputs, and gradient places are each parts of one buffer.
TEST_F(LinearCuda, Multiplies_at_once_what_lies_together) {
  const at::Tensor x = device_values({130, 64}, 1, at::kBFloat16);
  const at::Tensor joined = device_values({96, 64}, 2, at::kBFloat16);
  const auto grads = device_values({130, 96}, 3, at::kBFloat16).split_with_sizes({32, 64}, 1);
  const at::Tensor exact_grad = at::cat({grads[0], grads[1]}, 1).to(at::kDouble).t().mm(x.to(at::kDouble));
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const at::Tensor places = at::empty({96, 64}, x.options().dtype(dtype));
    std::vector<at::Tensor> weights;
    std::vector<bool> has_values(2, false);
    std::vector<GradientHookHandle> hooks;
    for (std::size_t i = 0; i < 2; ++i) {
      weights.push_back(joined.split_with_sizes({32, 64}, 0)[i].variable_data().set_requires_grad(true));
      hooks.push_back(
          on_gradient(weights[i], {.arrived = [](const at::Tensor&) {},
                                   .place =
                                       [&, i] {
                                         const bool had_values = has_values[i];
                                         has_values[i] = true;
                                         return GradientPlace{places.split_with_sizes({32, 64}, 0)[i], had_values};
                                       }}));
    }
    const at::Tensor input = leaf(x);
    const std::vector<at::Tensor> y = linears(input, weights);
    EXPECT_EQ(static_cast<const char*>(y[1].const_data_ptr()) - static_cast<const char*>(y[0].const_data_ptr()), 64);
    EXPECT_LT((at::cat({y[0], y[1]}, 1) - at::linear(x, joined)).abs().max().item<double>(), 1e-6);
    const auto backward_twice = [&] {
      for (int i = 0; i < 2; ++i) torch::autograd::backward({y[0], y[1]}, {grads[0], grads[1]}, /*retain_graph=*/true);
    };
    backward_twice();
    const double error =
        (places.to(at::kDouble) - 2 * exact_grad).norm().item<double>() / exact_grad.norm().item<double>();
    EXPECT_LT(error, dtype == at::kFloat ? 1e-5 : 2e-2) << dtype;
    const at::Tensor exact = at::cat({grads[0], grads[1]}, 1).to(at::kDouble).mm(joined.to(at::kDouble));
    EXPECT_LT((input.grad().to(at::kDouble) - 2 * exact).norm().item<double>() / exact.norm().item<double>(), 2e-2);
  }
}

}  // namespace
}  // namespace d9d::kernels::linear_cuda_test
