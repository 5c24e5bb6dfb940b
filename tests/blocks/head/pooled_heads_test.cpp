// Compares classification and embedding heads with plain compositions of ATen operators.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/head/classification_head.h"
#include "d9d/blocks/head/embedding_head.h"

#include "tests/support/block_oracle.h"
#include "tests/support/compare.h"
#include "tests/support/io_faults.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::pooled_heads_test {
namespace {
using test::tolerance;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kHidden = 6;
const at::Tensor kFirst = at::tensor({1, 0, 0, 1, 0, 0}, at::kLong).reshape({2, 3});
const at::Tensor kLast = at::tensor({0, 0, 1, 0, 1, 0}, at::kLong).reshape({2, 3});
const at::Tensor kAll = at::ones({2, 3}, at::kLong);

struct Pooling {
  std::optional<at::Tensor> mask;
  std::vector<std::int64_t> rows;  // selected rows of [B * S], in order
};
const std::vector<Pooling> kPoolings = {{kFirst, {0, 3}}, {kLast, {2, 4}}, {kAll, {0, 1, 2, 3, 4, 5}}};

at::Tensor rows_of(const at::Tensor& hidden, const Pooling& pooling) {
  return hidden.reshape({-1, kHidden}).index({at::tensor(pooling.rows, at::kLong)});
}

// Compares output, input gradient and weight gradient with those of expected(hidden, weight).
template <class Head, class Forward, class Expected>
void expect_equals(const ModulePtr<Head>& head, const ParameterPtr& parameter, const Forward& forward,
                   const Expected& expected_forward) {
  const at::Tensor hidden = test::normal_leaf({2, 3, kHidden}, 1), plain_hidden = test::normal_leaf({2, 3, kHidden}, 1);
  const at::Tensor weight = parameter->local().detach().clone().set_requires_grad(true);
  const at::Tensor output = forward(head, hidden), expected = expected_forward(plain_hidden, weight);
  test::expect_close("output", output, expected, tolerance("fp64"));
  test::backward(output, test::normal(output.sizes(), 2));
  test::backward(expected, test::normal(output.sizes(), 2));
  test::expect_all_close({{"hidden_states", hidden.grad()}, {"weight", parameter->local().grad()}},
                         {{"hidden_states", plain_hidden.grad()}, {"weight", weight.grad()}}, tolerance("fp64"));
}

TEST(ClassificationHead, Scores_the_positions_that_the_mask_selects) {
  for (const Pooling& pooling : kPoolings) {
    const auto head = test::initialized(make_module<ClassificationHead>(ClassificationHeadConfig{3}, kHidden));
    expect_equals(
        head, head->score->weight,
        [&](const auto& module, const at::Tensor& hidden) {
          return module(hidden, PoolingShared{pooling.mask}).scores;
        },
        [&](const at::Tensor& hidden, const at::Tensor& weight) {
          return at::linear(rows_of(hidden, pooling), weight);
        });
  }
}

TEST(PooledRows, Are_the_same_where_their_number_is_known) {
  for (const Pooling& pooling : kPoolings) {
    const at::Tensor hidden = test::normal_leaf({2, 3, kHidden}, 1), counted = test::normal_leaf({2, 3, kHidden}, 1);
    const at::Tensor rows = pooled_rows(hidden, {pooling.mask, std::ssize(pooling.rows)}).rows;
    const at::Tensor expected = pooled_rows(counted, {pooling.mask}).rows;
    EXPECT_TRUE(at::equal(rows, expected));
    rows.square().sum().backward();
    expected.square().sum().backward();
    EXPECT_TRUE(at::equal(hidden.grad(), counted.grad()));
  }
}

TEST(PooledRows, Refuse_a_mask_that_selects_another_number) {
  const at::Tensor hidden = test::normal({2, 3, kHidden}, 1);
  for (const std::int64_t number : {1, 3, 6}) {
    EXPECT_THAT(test::message_of<ConfigError>([&] {
                  (void)pooled_rows(hidden, {kLast, number});
                }),
                AllOf(HasSubstr(cat("num_positions = ", number)), HasSubstr("got 2")));
  }
}

TEST(ClassificationHead, Scores_every_position_without_a_mask) {
  const auto head = test::initialized(make_module<ClassificationHead>(ClassificationHeadConfig{3}, kHidden));
  expect_equals(
      head, head->score->weight,
      [](const auto& module, const at::Tensor& hidden) { return module(hidden, PoolingShared{}).scores; },
      [](const at::Tensor& hidden, const at::Tensor& weight) { return at::linear(hidden, weight); });
}

TEST(ClassificationHead, Gives_float32_scores_in_a_bfloat16_model) {
  const auto head =
      test::initialized(make_module<ClassificationHead>(ClassificationHeadConfig{3}, kHidden), at::kBFloat16);
  EXPECT_EQ(head(test::normal({2, 3, kHidden}, 1, at::kBFloat16), PoolingShared{kLast}).scores.scalar_type(),
            at::kFloat);
}

TEST(ClassificationHead, Drops_features_in_training_only) {
  const ClassificationHeadConfig config{.num_labels = 3, .dropout = 0.5};
  const auto head = test::initialized(make_module<ClassificationHead>(config, kHidden));
  const at::Tensor hidden = test::normal({2, 3, kHidden}, 1);
  const auto scores = [&] { return head(hidden, PoolingShared{}).scores; };
  EXPECT_FALSE(at::equal(scores(), at::linear(hidden, head->score->weight->local())));
  head->eval();
  EXPECT_TRUE(at::equal(scores(), at::linear(hidden, head->score->weight->local())));
}

TEST(EmbeddingHead, Projects_and_normalises_the_selected_positions) {
  for (const Pooling& pooling : kPoolings) {
    const EmbeddingHeadConfig config{.embedding_dim = 4, .normalize = true};
    const auto head = test::initialized(make_module<EmbeddingHead>(config, kHidden));
    expect_equals(
        head, head->projection->weight,
        [&](const auto& module, const at::Tensor& hidden) {
          return module(hidden, PoolingShared{pooling.mask}).embeddings;
        },
        [&](const at::Tensor& hidden, const at::Tensor& weight) {
          const at::Tensor rows = at::linear(rows_of(hidden, pooling), weight);
          return rows * rows.square().sum(-1, /*keepdim=*/true).rsqrt();
        });
  }
}

TEST(EmbeddingHead, Is_the_hidden_states_without_projection_and_norm) {
  const auto head = test::initialized(make_module<EmbeddingHead>(EmbeddingHeadConfig{}, kHidden));
  const at::Tensor hidden = test::normal({2, 3, kHidden}, 1);
  EXPECT_TRUE(head->state_dict().empty());
  EXPECT_TRUE(at::equal(head(hidden, PoolingShared{}).embeddings, hidden));
  EXPECT_TRUE(at::equal(head(hidden, PoolingShared{kFirst}).embeddings, hidden.select(1, 0)));
}

TEST(EmbeddingHead, Normalises_a_zero_vector_to_zeros_with_finite_gradients) {
  const auto head = test::initialized(make_module<EmbeddingHead>(EmbeddingHeadConfig{.normalize = true}, kHidden));
  const at::Tensor hidden = at::zeros({1, 1, kHidden}, at::kDouble).set_requires_grad(true);
  const at::Tensor embeddings = head(hidden, PoolingShared{}).embeddings;
  EXPECT_TRUE(embeddings.eq(0).all().item<bool>());
  test::backward(embeddings, at::ones_like(embeddings));
  EXPECT_TRUE(hidden.grad().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace d9d::pooled_heads_test
