#include "d9d/data/sequences/token_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/tree/tree.h"

namespace d9d::token_sample_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

TEST(CollateFixed, Rejects_documents_that_are_not_those_of_their_sequence) {
  TokenSample packed = next_token_sample(tokens({1, 2, 3, 4}));
  packed.packed_lengths = {2, 2};
  EXPECT_THROW((void)collate_fixed(std::vector{packed}), ConfigError);
}

TEST(CollateFixed, To_a_multiple_has_room_for_all_ranks_that_share_a_sequence) {
  TokenSample packed = next_token_sample(at::arange(6, at::kLong));
  packed.packed_lengths = {3, 2};
  const TokenBatch batch = collate_fixed_to_multiple(std::vector{packed, packed}, 4);
  EXPECT_TRUE(at::equal(batch.input_ids[1], at::tensor({0, 1, 2, 3, 4, 0, 0, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.labels[0], at::tensor({1, 2, 3, 4, 5, -100, -100, -100}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.packed.value().cu_seqlens, at::tensor({0, 3, 5, 8, 11, 13, 16}, at::kInt)));
  EXPECT_EQ(batch.lengths, (std::vector<std::int64_t>{5, 5}));
}

TEST(CollatePadded, Fills_the_right_with_input_0_ignored_labels_and_position_0) {
  const TokenBatch batch =
      collate_padded(std::vector{next_token_sample(tokens({1, 2})), next_token_sample(tokens({3, 4, 5, 6}))});
  EXPECT_TRUE(batch.input_ids.equal(tokens({1, 0, 0, 3, 4, 5}).view({2, 3})));
  EXPECT_TRUE(batch.labels.equal(tokens({2, -100, -100, 4, 5, 6}).view({2, 3})));
  EXPECT_TRUE(batch.position_ids.equal(tokens({0, 0, 0, 0, 1, 2}).view({2, 3})));
}

TEST(CollatePadded, Tells_how_many_positions_of_each_sequence_are_data) {
  const std::vector samples = {next_token_sample(tokens({1, 2})), next_token_sample(tokens({3, 4, 5, 6}))};
  EXPECT_THAT(collate_padded(samples).lengths, ElementsAre(1, 3));
  EXPECT_THAT(collate_padded(std::vector{samples[1], samples[1]}).lengths, IsEmpty());
}

TEST(CollatePadded, To_a_multiple_has_room_for_all_ranks_that_share_a_sequence) {
  const std::vector samples = {next_token_sample(tokens({1, 2})), next_token_sample(tokens({3, 4, 5, 6}))};
  const TokenBatch batch = collate_padded_to_multiple(samples, 4);
  EXPECT_TRUE(batch.input_ids.equal(tokens({1, 0, 0, 0, 3, 4, 5, 0}).view({2, 4})));
  EXPECT_TRUE(batch.labels.equal(tokens({2, -100, -100, -100, 4, 5, 6, -100}).view({2, 4})));
  EXPECT_THAT(batch.lengths, ElementsAre(1, 3));
  TokenSample nothing = samples[0];
  for (at::Tensor* const row : {&nothing.input_ids, &nothing.labels, &nothing.position_ids})
    *row = row->narrow(0, 0, 0);
  EXPECT_EQ(collate_padded_to_multiple(std::vector{nothing}, 4).input_ids.sizes(), (at::IntArrayRef{1, 4}));
  EXPECT_THAT(collate_padded_to_multiple(std::vector{nothing}, 4).lengths, ElementsAre(0));
}

TEST(TokenSample, Becomes_padding_that_has_neither_labels_nor_data) {
  TokenSample sample = next_token_sample(tokens({3, 4, 5, 6}));
  const at::Tensor labels = sample.labels.clone(), shared = sample.labels;
  make_padding(sample);
  const TokenBatch batch = collate_fixed(std::vector{next_token_sample(tokens({1, 2, 3, 4})), sample});
  EXPECT_TRUE(batch.labels.equal(tokens({2, 3, 4, -100, -100, -100}).view({2, 3})));
  EXPECT_THAT(batch.lengths, ElementsAre(3, 0));
  EXPECT_TRUE(shared.equal(labels)) << "labels that another sample may share were written";
}

TEST(RealPositions, Are_those_before_the_ends_in_any_part_of_the_sequences) {
  const TokenBatch batch{
      .input_ids = at::zeros({3, 8}, at::kLong), .labels = {}, .position_ids = {}, .lengths = {8, 3, 0}};
  const auto of = [&](const std::vector<FlatRange>& ranges) { return *real_positions(batch, ranges, at::kCPU); };
  EXPECT_TRUE(of({{0, 8}}).equal(tokens({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10})));
  EXPECT_TRUE(of({{0, 4}}).equal(tokens({0, 1, 2, 3, 4, 5, 6})));
  EXPECT_TRUE(of({{2, 4}}).equal(tokens({0, 1, 2})));
  EXPECT_TRUE(of({{4, 8}}).equal(tokens({0, 1, 2, 3})));
  EXPECT_TRUE(of({{0, 2}, {6, 8}}).equal(tokens({0, 1, 2, 3, 4, 5})));
}

TEST(RealPositions, Are_none_where_all_are_data) {
  TokenBatch batch{.input_ids = at::zeros({2, 8}, at::kLong), .labels = {}, .position_ids = {}};
  EXPECT_FALSE(real_positions(batch, {{0, 8}}, at::kCPU).has_value());
  batch.lengths = {8, 5};
  EXPECT_FALSE(real_positions(batch, {{0, 4}}, at::kCPU).has_value());
  EXPECT_EQ(real_positions(batch, {{4, 8}}, at::kCPU)->size(0), 5);
  batch.lengths = {8};
  EXPECT_THROW((void)real_positions(batch, {{0, 8}}, at::kCPU), ConfigError);
}

TEST(CollatePadded, Rejects_an_empty_batch) { EXPECT_THROW((void)collate_padded({}), ConfigError); }

TEST(TokenBatch, Is_a_tree_of_its_three_tensors) {
  const TokenBatch batch = collate_fixed(std::vector{next_token_sample(tokens({1, 2}))});
  EXPECT_EQ(tree_leaves_with_path(batch).at(1).first, "labels");
  EXPECT_EQ(tree_leaves(batch).size(), 3u);
}

}  // namespace
}  // namespace d9d::token_sample_test
