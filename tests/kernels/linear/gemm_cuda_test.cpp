#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/kernels/linear/gemm.h"

#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::detail::gemm_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::expect_no_worse;
using ::d9d::testing::fits_into_memory;
using ::d9d::testing::ramp;

class ProductCuda : public ::d9d::testing::CudaTest {};

void expect_as_exact_as_aten(const at::Tensor& x, const at::Tensor& weight, at::ScalarType out_dtype) {
  const auto empty = [&] { return at::empty({x.size(0), weight.size(0)}, x.options().dtype(out_dtype)); };
  const at::Tensor out = empty(), again = empty();
  write_rows_product(out, x, weight);
  at::Tensor peer = empty();
  if (out_dtype == x.scalar_type()) {
    at::mm_out(peer, x, weight.t());
  } else {
    at::mm_out(peer, x, weight.t(), out_dtype);
  }
  const at::Tensor exact = x.to(at::kDouble).mm(weight.to(at::kDouble).t());
  expect_no_worse({{"out", out}}, {{"out", peer}}, {{"out", exact}});
  write_rows_product(again, x, weight);
  EXPECT_TRUE(out.equal(again));
}

bool takes(const at::Tensor& x, const at::Tensor& weight, at::ScalarType out_dtype = at::kBFloat16) {
  return write_rows_product_by_cublas(at::empty({x.size(0), weight.size(0)}, x.options().dtype(out_dtype)), x, weight);
}

TEST_F(ProductCuda, Is_as_exact_as_ATen_for_every_dtype) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = device_values({4096, 1024}, 1, dtype), weight = device_values({6144, 1024}, 2, dtype);
    for (const at::ScalarType out_dtype : {dtype, at::kFloat}) {
      EXPECT_TRUE(takes(x, weight, out_dtype));
      expect_as_exact_as_aten(x, weight, out_dtype);
    }
  }
}

// Sizes for which cuBLAS has such a kernel, and others.
TEST_F(ProductCuda, Is_as_exact_as_ATen_for_sizes_that_no_tile_divides) {
  for (const std::int64_t num_terms : {1024, 1032, 1088})
    for (const std::int64_t num_columns : {6152, 6208})
      expect_as_exact_as_aten(device_values({4101, num_terms}, 1, at::kBFloat16),
                              device_values({num_columns, num_terms}, 2, at::kBFloat16), at::kBFloat16);
}

// As for operands that are parts of one buffer: columns of a wider matrix, starting 16 bytes from its beginning.
TEST_F(ProductCuda, Takes_slices_of_wider_matrices_and_writes_nothing_else) {
  const at::Tensor wide = device_values({4096, 2064}, 1, at::kBFloat16);
  const at::Tensor weight = device_values({6144, 1024}, 2, at::kBFloat16);
  EXPECT_TRUE(takes(wide.narrow(1, 8, 1024), weight));
  expect_as_exact_as_aten(wide.narrow(1, 8, 1024), weight, at::kBFloat16);
  expect_as_exact_as_aten(wide.narrow(1, 1032, 1024), weight, at::kFloat);
  const at::Tensor out = at::zeros({4096, 8192}, weight.options());
  ASSERT_TRUE(write_rows_product_by_cublas(out.narrow(1, 1024, 6144), wide.narrow(1, 8, 1024), weight));
  EXPECT_EQ(out.narrow(1, 0, 1024).abs().max().item<float>(), 0);
  EXPECT_EQ(out.narrow(1, 7168, 1024).abs().max().item<float>(), 0);
  EXPECT_GT(out.narrow(1, 1024, 6144).abs().max().item<float>(), 0);
}

TEST_F(ProductCuda, Leaves_to_ATen_what_is_small_deep_wide_or_not_aligned) {
  const at::Tensor x = device_values({4096, 4104}, 1, at::kBFloat16),
                   weight = device_values({6144, 4104}, 2, at::kBFloat16);
  const auto first = [](const at::Tensor& rows, std::int64_t count) { return rows.narrow(1, 0, count); };
  EXPECT_TRUE(takes(first(x, 2048), first(weight, 2048)));
  EXPECT_FALSE(takes(first(x, 4096), first(weight, 4096)));
  EXPECT_FALSE(takes(first(x, 2048).narrow(0, 0, 2048), first(weight, 2048)));
  EXPECT_FALSE(takes(x.narrow(1, 1, 2048), first(weight, 2048)));
  EXPECT_FALSE(takes(first(x, 2048).narrow(0, 0, 1).expand({4096, 2048}), first(weight, 2048)));
  EXPECT_FALSE(takes(first(x, 2048).to(at::kFloat), first(weight, 2048).to(at::kFloat), at::kFloat));
}

TEST_F(ProductCuda, May_be_asked_for_by_several_threads) {
  const at::Tensor x = device_values({4096, 1024}, 1, at::kBFloat16),
                   weight = device_values({6144, 1024}, 2, at::kBFloat16);
  const at::Tensor expected = rows_product(x, weight);
  at::Tensor results[4];
  {
    std::vector<std::jthread> threads;
    for (at::Tensor& result : results) threads.emplace_back([&] { result = rows_product(x, weight); });
  }
  for (const at::Tensor& result : results) EXPECT_TRUE(result.equal(expected));
}

TEST_F(ProductCuda, Addresses_more_than_2_31_results) {
  if (!fits_into_memory([] {
        constexpr std::int64_t kRows = 65536, kColumns = 32832, kTerms = 1024;
        const at::Tensor x = ramp({kRows, kTerms}, 0.37, at::kBFloat16),
                         weight = ramp({kColumns, kTerms}, 0.73, at::kBFloat16);
        const at::Tensor out = at::empty({kRows, kColumns}, x.options());
        ASSERT_TRUE(write_rows_product_by_cublas(out, x, weight));
        const at::Tensor last = x.narrow(0, kRows - 8, 8).to(at::kDouble).mm(weight.to(at::kDouble).t());
        EXPECT_LT((out.narrow(0, kRows - 8, 8) - last).norm().item<double>(), 4e-3 * last.norm().item<double>());
      }))
    GTEST_SKIP() << "the device has too little memory";
}

}  // namespace
}  // namespace d9d::kernels::detail::gemm_cuda_test
