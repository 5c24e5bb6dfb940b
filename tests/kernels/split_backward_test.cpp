// Operators in a split backward: their weights' gradients wait, where a product of its own makes them, and are bit for
// bit those of a whole backward.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/core/autograd/deferred_gradients.h"
#include "d9d/kernels/embedding/embedding.h"
#include "d9d/kernels/grouped_mm/grouped_mm.h"
#include "d9d/kernels/linear/linear.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "d9d/kernels/rms_norm/rms_norm.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear.h"

#include "tests/kernels/split_backward_testing.h"
#include "tests/support/matrix_products.h"

namespace d9d::kernels::split_backward_test {
namespace {

using ::d9d::testing::leaf;
using ::d9d::testing::split_difference;
using ::d9d::testing::values;

using Inputs = std::vector<at::Tensor>;

TEST(SplitBackward, Of_linears_leaves_one_product_a_call) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor x = values({3, 4, 8}, 1, dtype);
    const auto one = [](const Inputs& in) { return Inputs{kernels::linear(in[0], in[1])}; };
    EXPECT_EQ(split_difference(one, {x, values({5, 8}, 2, dtype)}, 1), "") << dtype;
    const auto three = [](const Inputs& in) { return linears(in[0], {in[1], in[2], in[3]}); };
    const Inputs weights = values({18, 8}, 3, dtype).split_with_sizes({8, 4, 6}, 0);
    EXPECT_EQ(split_difference(three, {x, weights[0], weights[1], weights[2]}, 1), "") << dtype;
    const auto gated = [](const Inputs& in) { return Inputs{silu_mul_linear(in[0], in[0] * 2, in[1])}; };
    EXPECT_EQ(split_difference(gated, {x, values({5, 8}, 2, dtype)}, 1), "") << dtype;
  }
}

TEST(SplitBackward, Of_linears_with_biases_leaves_a_product_and_a_sum) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto op = [](const Inputs& in) { return linears(in[0], {in[1], in[2]}, {in[3], in[4]}); };
    EXPECT_EQ(split_difference(op,
                               {values({3, 4, 8}, 1, dtype), values({5, 8}, 2, dtype), values({6, 8}, 3, dtype),
                                values({5}, 4, dtype), values({6}, 5, dtype)},
                               2),
              "")
        << dtype;
  }
}

TEST(SplitBackward, Of_linears_with_terms_leaves_a_product_of_all_A_and_one_of_each_B) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto op = [](const Inputs& in) {
      return linears(in[0], {in[1], in[2]}, {}, {{in[3], in[4], 2.0, 0}, {in[5], in[6], 1.0, 1}});
    };
    EXPECT_EQ(split_difference(op,
                               {values({3, 4, 8}, 1, dtype), values({5, 8}, 2, dtype), values({6, 8}, 3, dtype),
                                values({2, 8}, 4, dtype), values({5, 2}, 5, dtype), values({3, 8}, 6, dtype),
                                values({6, 3}, 7, dtype)},
                               4),
              "")
        << dtype;
  }
}

TEST(SplitBackward, Of_grouped_products_leaves_one_product_a_weight) {
  const auto groups = ExpertTokenGroups::from_counts(at::tensor({3, 0, 5}, at::kLong));
  for (const GroupedMMBackend backend : {GroupedMMBackend::kEager, GroupedMMBackend::kTorch}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const auto op = [&](const Inputs& in) { return grouped_mms(in[0], {in[1], in[2]}, groups, backend); };
      EXPECT_EQ(
          split_difference(op, {values({8, 4}, 1, dtype), values({3, 4, 6}, 2, dtype), values({3, 4, 6}, 3, dtype)}, 2),
          "")
          << dtype;
    }
  }
}

TEST(SplitBackward, Of_an_embedding_leaves_the_sum_of_its_rows) {
  const at::Tensor ids = at::tensor({3, 1, 3, 0, 4, 3}, at::kLong).view({2, 3});
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const auto op = [](const Inputs& in) { return Inputs{embedding_rows(in[1], in[0])}; };
    EXPECT_EQ(split_difference(op, {ids, values({5, 4}, 1, dtype)}, 1), "") << dtype;
  }
}

// One kernel makes both gradients; the head multiplies its logits again for either.
TEST(SplitBackward, Of_norms_and_heads_leaves_nothing_and_is_right) {
  const at::Tensor x = values({6, 4}, 1);
  const auto norm = [](const Inputs& in) { return Inputs{rms_norm(in[0], in[1])}; };
  EXPECT_EQ(split_difference(norm, {x, values({4}, 2)}, 0), "");
  const at::Tensor targets = at::tensor({0, 3, 2, -100, 4, 1}, at::kLong);
  const auto head = [&](const Inputs& in) { return Inputs{linear_cross_entropy(in[0], {in[1]}, targets).loss}; };
  EXPECT_EQ(split_difference(head, {x, values({5, 4}, 2)}, 0), "");
}

TEST(SplitBackward, Of_linears_multiplies_nothing_twice) {
  constexpr std::int64_t kTokens = 7;
  const at::Tensor x = leaf(values({kTokens, 4}, 1));
  const Inputs weights = {leaf(values({5, 4}, 2)), leaf(values({6, 4}, 3)), leaf(values({3, 5}, 4))};
  const auto forward = [&] {
    const Inputs y = linears(x, {weights[0], weights[1]});
    return kernels::linear(y[0], weights[2]).square().sum() + y[1].square().sum();
  };
  const at::Tensor loss = forward();
  const test::MatrixProducts products;
  loss.backward();
  const std::int64_t of_weights = products.count(kTokens), in_all = products.count();
  EXPECT_EQ(of_weights, 3);
  DeferredGradients deferred(weights);
  const at::Tensor again = forward();
  test::MatrixProducts::clear();
  WeightGradients waiting = deferred.keep([&] { again.backward(); });
  EXPECT_EQ(products.count(kTokens), 0);
  EXPECT_EQ(products.count(), in_all - of_weights);
  test::MatrixProducts::clear();
  waiting.run();
  EXPECT_EQ(products.count(kTokens), of_weights);
  EXPECT_EQ(products.count(), of_weights);
}

}  // namespace
}  // namespace d9d::kernels::split_backward_test
