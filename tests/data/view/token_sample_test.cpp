#include "d9d/data/view/token_sample.h"

#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/tree/tree.h"

namespace d9d::token_sample_test {
namespace {

at::Tensor tokens(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong); }

TEST(TokenSample, Shifts_labels_one_token_ahead) {
  const TokenSample sample = next_token_sample(tokens({5, 6, 7, 8}));
  EXPECT_TRUE(sample.input_ids.equal(tokens({5, 6, 7})));
  EXPECT_TRUE(sample.labels.equal(tokens({6, 7, 8})));
  EXPECT_TRUE(sample.position_ids.equal(tokens({0, 1, 2})));
}

TEST(TokenSample, Rejects_what_has_nothing_to_predict) {
  EXPECT_THROW((void)next_token_sample(tokens({5})), ConfigError);
  EXPECT_THROW((void)next_token_sample(at::ones({3})), ConfigError);
}

TEST(CollateFixed, Stacks_sequences_of_one_length) {
  const TokenBatch batch =
      collate_fixed(std::vector{next_token_sample(tokens({1, 2, 3})), next_token_sample(tokens({4, 5, 6}))});
  EXPECT_TRUE(batch.input_ids.equal(tokens({1, 2, 4, 5}).view({2, 2})));
  EXPECT_TRUE(batch.labels.equal(tokens({2, 3, 5, 6}).view({2, 2})));
  EXPECT_TRUE(batch.position_ids.equal(tokens({0, 1, 0, 1}).view({2, 2})));
}

TEST(CollateFixed, Rejects_sequences_of_different_lengths) {
  EXPECT_THROW(
      (void)collate_fixed(std::vector{next_token_sample(tokens({1, 2, 3})), next_token_sample(tokens({4, 5}))}),
      ConfigError);
}

TEST(CollatePadded, Fills_the_right_with_input_0_ignored_labels_and_position_0) {
  const TokenBatch batch =
      collate_padded(std::vector{next_token_sample(tokens({1, 2})), next_token_sample(tokens({3, 4, 5, 6}))});
  EXPECT_TRUE(batch.input_ids.equal(tokens({1, 0, 0, 3, 4, 5}).view({2, 3})));
  EXPECT_TRUE(batch.labels.equal(tokens({2, -100, -100, 4, 5, 6}).view({2, 3})));
  EXPECT_TRUE(batch.position_ids.equal(tokens({0, 0, 0, 0, 1, 2}).view({2, 3})));
}

TEST(CollatePadded, Rejects_an_empty_batch) { EXPECT_THROW((void)collate_padded({}), ConfigError); }

TEST(TokenBatch, Is_a_tree_of_its_three_tensors) {
  const TokenBatch batch = collate_fixed(std::vector{next_token_sample(tokens({1, 2}))});
  EXPECT_EQ(tree_leaves_with_path(batch).at(1).first, "labels");
  EXPECT_EQ(tree_leaves(batch).size(), 3u);
}

}  // namespace
}  // namespace d9d::token_sample_test
