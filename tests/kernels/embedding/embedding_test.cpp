#include "d9d/kernels/embedding/embedding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/leaf_gradient.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::embedding_test {
namespace {

using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;

constexpr std::int64_t kRows = 16;
constexpr std::int64_t kHidden = 8;
// Ids that occur about a thousand times each, except row 3, which does not occur.
const at::Tensor kIds = [] {
  const at::Tensor ids = (at::arange(1 << 14, at::kLong) * 7 % kRows).view({64, 256});
  return at::where(ids.eq(3), 4, ids);
}();

// The gradient of a row summed in fp64.
at::Tensor expected_gradient(const at::Tensor& grad_out) {
  return at::zeros({kRows, kHidden}, at::kDouble)
      .index_add(0, kIds.flatten(), grad_out.to(at::kDouble).view({-1, kHidden}));
}

// All of one sign: a sum in bfloat16 stops growing when a summand is less than half a rounding step.
at::Tensor positive_gradient(at::ScalarType dtype) { return values({64, 256, kHidden}, 2).abs().add(0.1).to(dtype); }

TEST(Embedding, Equals_that_of_aten) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const auto table = leaf(values({kRows, kHidden}, 1).to(dtype)), plain = leaf(table.detach().clone());
    const auto x = embedding_rows(table, kIds), expected = at::embedding(plain, kIds);
    EXPECT_TRUE(at::equal(x, expected));
    const at::Tensor grad_out = values({64, 256, kHidden}, 2).to(dtype);
    x.backward(grad_out);
    expected.backward(grad_out);
    EXPECT_TRUE(at::equal(table.grad(), plain.grad()));
  }
}

TEST(Embedding, Sums_a_bfloat16_gradient_in_float32) {
  const auto table = leaf(values({kRows, kHidden}, 1).to(at::kBFloat16));
  const at::Tensor grad_out = positive_gradient(at::kBFloat16);
  embedding_rows(table, kIds).backward(grad_out);
  EXPECT_EQ(table.grad().scalar_type(), at::kBFloat16);
  EXPECT_LT(difference(table.grad(), expected_gradient(grad_out)), 1.0 / 256);  // of one rounding
}

TEST(Embedding, Adds_to_where_gradients_are_kept_without_rounding) {
  const auto table = leaf(values({kRows, kHidden}, 1).to(at::kBFloat16));
  const at::Tensor kept = at::full({kRows, kHidden}, 100.0, at::kFloat);
  bool has_values = false;
  const GradientHookHandle hook = on_gradient(table, {.arrived = [](const at::Tensor&) {},
                                                      .place =
                                                          [&] {
                                                            return GradientPlace{kept, std::exchange(has_values, true)};
                                                          }});
  const at::Tensor grad_out = positive_gradient(at::kBFloat16), expected = expected_gradient(grad_out);
  for (const int times : {1, 2}) {
    embedding_rows(table, kIds).backward(grad_out);
    EXPECT_FALSE(table.grad().defined());
    EXPECT_LT(difference(kept, times * expected), 1e-5) << times;
  }
}

TEST(Embedding, Adds_to_a_bfloat16_gradient_of_former_microbatches) {
  const auto table = leaf(values({kRows, kHidden}, 1).to(at::kBFloat16));
  const at::Tensor grad_out = positive_gradient(at::kBFloat16);
  embedding_rows(table, kIds).backward(grad_out);
  embedding_rows(table, kIds).backward(grad_out);
  EXPECT_LT(difference(table.grad(), 2 * expected_gradient(grad_out)), 2.0 / 256);  // of two roundings
}

TEST(Embedding, Refuses_a_gradient_of_its_gradient) {
  const auto table = leaf(values({kRows, kHidden}, 1));
  EXPECT_THROW(embedding_rows(table, kIds).sum().backward({}, std::nullopt, /*create_graph=*/true), UsageError);
}

}  // namespace
}  // namespace d9d::kernels::embedding_test
