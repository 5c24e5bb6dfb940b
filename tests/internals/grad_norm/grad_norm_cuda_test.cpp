#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/internals/grad_norm/grad_norm.h"
#include "d9d/kernels/global_norm/global_norm.h"

#include "tests/support/cuda_test.h"

namespace d9d::grad_norm_cuda_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<double> kOrders = {1, 2, 3, kInfinity};

class GradNormCuda : public test::CudaTest {};

double norm(const std::vector<at::Tensor>& gradients, double order) {
  const at::Tensor result = global_grad_norm(gradients, order);
  EXPECT_TRUE(result.is_cuda());
  return result.item<double>();
}

// Numbers determined by size and seed. Sizes are near those of vectors, warps, blocks and chunks of 32,768.
at::Tensor gradient(std::int64_t size, double seed, at::ScalarType dtype) {
  return (at::sin(at::arange(size, at::kDouble) * 0.7 + seed) * (1 + seed)).to(dtype).cuda();
}
const std::vector<std::int64_t> kSizes = {0,      1,      3,      4,      7,      8,       9,    31,
                                          32,     33,     1023,   1024,   1025,   8191,    8192, 8193,
                                          32'767, 32'768, 32'769, 65'536, 65'537, 100'003, 2,    1'000'003};

double exact_norm(const std::vector<at::Tensor>& gradients, double order) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& each : gradients) flat.push_back(each.to(at::kDouble).flatten());
  return at::linalg_vector_norm(at::cat(flat), order).item<double>();
}

TEST_F(GradNormCuda, Equals_a_norm_in_fp64_for_every_dtype_and_size) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> gradients;
    for (const std::int64_t size : kSizes) {
      gradients.push_back(gradient(size, 0.01 * static_cast<double>(gradients.size()), dtype));
      if (size == 0) continue;
      for (const double order : kOrders)
        EXPECT_NEAR(norm({gradients.back()}, order) / exact_norm({gradients.back()}, order), 1,
                    dtype == at::kDouble ? 1e-14 : 2e-7)
            << dtype << " " << order << " " << size;
    }
    for (const double order : kOrders)
      EXPECT_NEAR(norm(gradients, order) / exact_norm(gradients, order), 1, dtype == at::kDouble ? 1e-14 : 1e-7)
          << dtype << " " << order;
  }
}

TEST_F(GradNormCuda, Takes_several_dtypes_unaligned_views_and_strides_together) {
  const at::Tensor wide = gradient(70'001, 0.1, at::kFloat), narrow = gradient(70'001, 0.2, at::kBFloat16);
  const std::vector<at::Tensor> gradients = {wide.narrow(0, 1, 69'000),      narrow.narrow(0, 3, 69'000),
                                             gradient(10, 0.3, at::kDouble), wide.view({-1}).slice(0, 0, 70'001, 3),
                                             gradient(600, 0.4, at::kHalf),  narrow.narrow(0, 5, 1)};
  for (const double order : kOrders)
    EXPECT_NEAR(norm(gradients, order) / exact_norm(gradients, order), 1, 1e-7) << order;
}

TEST_F(GradNormCuda, Takes_more_tensors_than_a_launch_holds) {
  std::vector<at::Tensor> gradients;
  for (std::int64_t i = 0; i < 4000; ++i)
    gradients.push_back(gradient(1 + i % 50, 0.001 * static_cast<double>(i), at::kFloat));
  for (const double order : kOrders)
    EXPECT_NEAR(norm(gradients, order) / exact_norm(gradients, order), 1, 1e-7) << order;
}

TEST_F(GradNormCuda, Gives_the_same_bits_again_and_wherever_the_tensors_lie) {
  const at::Tensor base = gradient(1'000'010, 0.1, at::kFloat);
  const at::Tensor unaligned = base.narrow(0, 1, 1'000'003);
  const double expected = norm({unaligned}, 2);
  EXPECT_EQ(norm({unaligned}, 2), expected);
  EXPECT_EQ(norm({unaligned.clone()}, 2), expected);
}

TEST_F(GradNormCuda, Is_zero_without_elements) {
  for (const double order : kOrders) EXPECT_EQ(norm({gradient(0, 0, at::kFloat), at::zeros({3}, at::kCUDA)}, order), 0);
  EXPECT_EQ(norm({gradient(0, 0, at::kFloat)}, 2), 0);
}

TEST_F(GradNormCuda, Shows_what_is_not_finite) {
  for (const double order : kOrders) {
    for (const std::int64_t where : {0, 7, 20'000, 32'768, 70'000}) {
      const at::Tensor values = at::ones({70'001}, at::kCUDA), ones = at::ones({2}, at::kCUDA);
      values[where].fill_(std::nan(""));
      EXPECT_TRUE(std::isnan(norm({ones, values, ones}, order))) << order << " " << where;
      values[where].fill_(-kInfinity);
      EXPECT_EQ(norm({values}, order), kInfinity) << order << " " << where;
    }
  }
}

TEST_F(GradNormCuda, Counts_more_elements_than_32_bits) {
  constexpr std::int64_t kSize = (std::int64_t{1} << 32) + 77;
  at::Tensor ones;
  try {
    ones = at::ones({kSize}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  } catch (const c10::Error&) {
    GTEST_SKIP() << "needs 9 GB of device memory";
  }
  EXPECT_EQ(norm({ones}, 1), static_cast<double>(kSize));
  EXPECT_NEAR(norm({ones}, 2), std::sqrt(static_cast<double>(kSize)), 1e-9);
}

}  // namespace
}  // namespace d9d::grad_norm_cuda_test
