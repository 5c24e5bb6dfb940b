// The precision in which the gradient of a weight is summed over targets, and the tensor that it is added to.
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/linear_cross_entropy/linear_cross_entropy_testing.h"
#include "tests/support/compare.h"

namespace d9d::kernels::linear_cross_entropy_sums_cuda_test {
namespace {

using ::d9d::testing::dense;
using ::d9d::testing::device_values;
using ::d9d::testing::kGpu;
using ::d9d::testing::labels;
using ::d9d::testing::leaf;

class LinearCrossEntropySumsCuda : public testing::CudaTest {};

// Rows of the weight that no target refers to, in 32 chunks of 2,048 rows: their gradients are sums of terms of one
// sign. Roundings of the terms average out, roundings of the sum do not.
struct OneSign {
  at::Tensor hidden = (device_values({2048, 64}, 1) + 2).to(at::kBFloat16);
  at::Tensor weight = (device_values({512, 64}, 2) * 0.02).to(at::kBFloat16);
  at::Tensor targets = labels({2048}, 256, 3).to(kGpu);
  std::int64_t chunk_size = 2048 * 512 / 32;
  double grad = 0.37;  // gradient of each loss

  [[nodiscard]] at::Tensor exact() const {
    const at::Tensor exact_weight = leaf(weight.to(at::kDouble));
    (dense(hidden.to(at::kDouble), exact_weight, targets, {}).loss.sum() * grad).backward();
    return of_sums(exact_weight.grad());
  }
  void backward(const at::Tensor& trained, bool in_forward) const {
    const auto output = linear_cross_entropy(leaf(hidden), trained, targets,
                                             {.chunk_size = chunk_size, .gradients_in_forward = in_forward});
    (output.loss.sum() * grad).backward();
  }
  static at::Tensor of_sums(const at::Tensor& gradient) { return gradient.narrow(0, 256, 256).to(at::kDouble); }
  static double distance(const at::Tensor& actual, const at::Tensor& exact) {
    return ((of_sums(actual) - exact).norm() / exact.norm()).item<double>();
  }
};

TEST_F(LinearCrossEntropySumsCuda, Sums_gradients_of_weights_over_chunks_in_fp32) {
  const OneSign job;
  const at::Tensor exact = job.exact();
  const double limit = test::tolerance("sum of bf16 products").value;
  for (const bool in_forward : {false, true}) {
    SCOPED_TRACE(in_forward ? "in forward" : "in backward");
    const at::Tensor weight = leaf(job.weight);
    job.backward(weight, in_forward);
    const double rounding = ((exact.to(at::kBFloat16) - exact).norm() / exact.norm()).item<double>();
    EXPECT_LT(OneSign::distance(weight.grad(), exact), rounding + limit);
    job.backward(weight, in_forward);  // added to the existing gradient: rounded once more
    EXPECT_LT(OneSign::distance(weight.grad(), 2 * exact), 2 * rounding + limit);
  }
}

TEST_F(LinearCrossEntropySumsCuda, Adds_sums_in_fp32_to_their_place) {
  const OneSign job;
  const at::Tensor exact = job.exact();
  for (const std::int64_t chunk_size : {job.chunk_size, std::int64_t{1} << 26}) {  // the second: a single chunk
    for (const bool in_forward : {false, true}) {
      for (const std::int64_t offset : {0, 1}) {  // in a flat buffer a place may begin at any offset
        SCOPED_TRACE(cat(in_forward ? "in forward" : "in backward", ", chunks of ", chunk_size, ", offset ", offset));
        const at::Tensor weight = leaf(job.weight);
        const at::Tensor place =
            at::full({weight.numel() + offset}, std::nan(""), at::TensorOptions(kGpu).dtype(at::kFloat))
                .narrow(0, offset, weight.numel())
                .view(weight.sizes());
        bool has_values = false;
        const GradientHookHandle hook = on_gradient(
            weight,
            {.arrived = [](const at::Tensor& leaf) { EXPECT_FALSE(leaf.grad().defined()); },
             .place = [&] { return GradientPlace{.tensor = place, .has_values = std::exchange(has_values, true)}; }});
        OneSign one = job;
        one.chunk_size = chunk_size;
        const bool is_rounded_by_product = in_forward && chunk_size != job.chunk_size;
        const double rounding = is_rounded_by_product ? 3e-3 : 0;
        for (int i = 1; i <= 2; ++i) {
          one.backward(weight, in_forward);
          EXPECT_LT(OneSign::distance(place, i * exact), test::tolerance("sum of bf16 products").value + rounding);
        }
      }
    }
  }
}

}  // namespace
}  // namespace d9d::kernels::linear_cross_entropy_sums_cuda_test
