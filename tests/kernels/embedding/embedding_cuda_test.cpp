#include <ATen/ATen.h>

#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/kernels/embedding/embedding.h"

#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::embedding_cuda_test {
namespace {

using ::d9d::testing::device_values;
using ::d9d::testing::difference;
using ::d9d::testing::leaf;

constexpr std::int64_t kRows = 1000;

class EmbeddingCuda : public testing::CudaTest {
 protected:
  // Adds the gradients of a table at `ids`, twice, to a place that begins without values.
  static at::Tensor sums_of(const at::Tensor& ids, std::int64_t num_columns, at::ScalarType dtype,
                            at::ScalarType dtype_of_place) {
    const auto table = leaf(device_values({kRows, num_columns}, 1, dtype));
    at::Tensor place = at::full({kRows, num_columns}, 7.0, table.options().dtype(dtype_of_place));
    bool has_values = false;
    const GradientHookHandle hook =
        on_gradient(table, {.arrived = [](const at::Tensor&) {},
                            .place =
                                [&] {
                                  return GradientPlace{place, std::exchange(has_values, true)};
                                }});
    for (const int seed : {2, 3}) embedding_rows(table, ids).backward(gradient(ids, num_columns, dtype, seed));
    EXPECT_FALSE(table.grad().defined());
    return place.cpu();
  }

  static at::Tensor expected(const at::Tensor& ids, std::int64_t num_columns, at::ScalarType dtype) {
    at::Tensor sums = at::zeros({kRows, num_columns}, at::kDouble);
    for (const int seed : {2, 3}) {
      sums.index_add_(0, ids.cpu().flatten(),
                      gradient(ids, num_columns, dtype, seed).cpu().to(at::kDouble).view({-1, num_columns}));
    }
    return sums;
  }

  static at::Tensor gradient(const at::Tensor& ids, std::int64_t num_columns, at::ScalarType dtype, int seed) {
    return device_values({ids.size(0), ids.size(1), num_columns}, seed, dtype);
  }
};

// Runs of one id, of a chunk of the kernel, one less and one more, of several chunks, of all ids.
TEST_F(EmbeddingCuda, Adds_runs_of_any_length_to_where_gradients_are_kept) {
  const auto ids_of_runs = [](std::vector<std::int64_t> lengths) {
    std::vector<at::Tensor> runs;
    std::int64_t id = 0;
    for (const std::int64_t length : lengths) runs.push_back(at::full({length}, id += 37, at::kLong));
    const at::Tensor ids = at::cat(runs);
    return ids.index_select(0, at::randperm(ids.numel(), at::kLong)).unsqueeze(0).to(at::kCUDA);
  };
  const std::vector<at::Tensor> all_ids = {ids_of_runs({1}),
                                           ids_of_runs({5}),
                                           ids_of_runs({16, 16, 16}),
                                           ids_of_runs({15, 17, 1, 31, 33}),
                                           ids_of_runs({3, 100, 1, 1, 48, 7}),
                                           ids_of_runs({8192}),
                                           at::randint(kRows, {4, 1024}, at::kLong).to(at::kCUDA)};
  for (const at::Tensor& ids : all_ids) {
    for (const std::int64_t num_columns : {1, 8, 36, 264, 2048}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << ids.numel() << " ids, " << num_columns << " columns of " << dtype);
        const at::Tensor wanted = expected(ids, num_columns, dtype);
        EXPECT_LT(difference(sums_of(ids, num_columns, dtype, at::kFloat), wanted), 1e-5);
        EXPECT_LT(difference(sums_of(ids, num_columns, dtype, at::kBFloat16), wanted), 2.0 / 256);  // two roundings
      }
    }
  }
}

// The last rows are those of ids that no other position has.
TEST_F(EmbeddingCuda, Reads_and_adds_rows_of_more_than_2_31_elements) {
  constexpr std::int64_t kColumns = 4096, kLast = 100, kPositions = (1 << 19) + kLast;
  const bool fits = ::d9d::testing::fits_into_memory([] {
    const at::Tensor ids = at::zeros({1, kPositions}, at::TensorOptions(at::kCUDA).dtype(at::kLong));
    ids.narrow(1, kPositions - kLast, kLast).copy_(at::arange(1, kLast + 1, ids.options()));
    const auto table = leaf(device_values({kRows, kColumns}, 1, at::kBFloat16));
    const at::Tensor place = at::empty({kRows, kColumns}, table.options().dtype(at::kFloat));
    const GradientHookHandle hook = on_gradient(table, {.arrived = [](const at::Tensor&) {},
                                                        .place =
                                                            [&] {
                                                              return GradientPlace{place, false};
                                                            }});
    const at::Tensor rows = embedding_rows(table, ids);
    const auto tail = [](const at::Tensor& x) { return x.narrow(1, kPositions - kLast, kLast).squeeze(0); };
    EXPECT_TRUE(at::equal(tail(rows), table.narrow(0, 1, kLast)));
    const at::Tensor grad = at::zeros_like(rows);
    tail(grad).copy_(device_values({kLast, kColumns}, 2, at::kBFloat16));
    rows.backward(grad);
    EXPECT_TRUE(at::equal(place.narrow(0, 1, kLast), tail(grad).to(at::kFloat)));
    EXPECT_EQ(place.narrow(0, 1 + kLast, kRows - 1 - kLast).abs().max().item<float>(), 0);
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

TEST_F(EmbeddingCuda, Adds_in_the_same_order_each_time) {
  const at::Tensor ids = at::randint(50, {4, 1024}, at::kLong).to(at::kCUDA);
  const at::Tensor first = sums_of(ids, 64, at::kBFloat16, at::kFloat);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(sums_of(ids, 64, at::kBFloat16, at::kFloat), first));
}

// Dtypes for which the whole gradient is made.
TEST_F(EmbeddingCuda, Puts_gradients_of_other_dtypes) {
  const at::Tensor ids = at::randint(kRows, {2, 64}, at::kLong).to(at::kCUDA);
  EXPECT_LT(difference(sums_of(ids, 16, at::kDouble, at::kDouble), expected(ids, 16, at::kDouble)), 1e-12);
  EXPECT_LT(difference(sums_of(ids, 16, at::kHalf, at::kFloat), expected(ids, 16, at::kHalf)), 2.0 / 1024);
}

}  // namespace
}  // namespace d9d::kernels::embedding_cuda_test
