// Tests of views that rearrange other datasets.
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/data/sequences/buffer_sorted_dataset.h"
#include "d9d/data/sequences/document_dataset.h"
#include "d9d/data/sequences/mixture_dataset.h"
#include "d9d/data/sequences/packed_dataset.h"
#include "d9d/data/sequences/sharded_dataset.h"
#include "d9d/data/sequences/shuffled_dataset.h"

#include "tests/data/sequences/sample_values.h"
#include "tests/data/source/source_test.h"
#include "tests/support/ranks.h"

namespace d9d::dataset_views_test {
namespace {

using test::Ids;
using test::values;
using ::testing::ElementsAre;

// Sample i of epoch e is 1000 e + i.
class Numbers final : public Dataset<std::int64_t> {
 public:
  explicit Numbers(std::int64_t size) : size_(size) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int64_t get(std::int64_t index) const override { return index; }
  [[nodiscard]] std::int64_t get_in_epoch(std::int64_t index, std::int64_t epoch) const override {
    return 1000 * epoch + index;
  }
  [[nodiscard]] std::int64_t sort_key(std::int64_t index) const { return index * 7 % 5; }

 private:
  std::int64_t size_;
};

template <class View>
Ids all_of(const View& view, std::int64_t epoch = 0) {
  Ids all;
  for (std::int64_t i = 0; i < view.size(); ++i) all.push_back(view.get_in_epoch(i, epoch));
  return all;
}

TEST(ShardedDataset, Has_the_samples_of_its_shard_in_every_epoch) {
  const auto base = std::make_shared<const Numbers>(5);
  const ShardedDataset shard(base, {.num_shards = 2, .shard = 1});
  EXPECT_THAT(all_of(shard), ElementsAre(1, 3));
  EXPECT_THAT(all_of(shard, 2), ElementsAre(2001, 2003));
  EXPECT_EQ(shard.sort_key(1), base->sort_key(3));
}

TEST(ShardedDataset, Is_made_for_the_data_parallel_ranks) {
  const auto base = std::make_shared<const Numbers>(5);
  for (const std::int64_t rank : {0, 1, 2, 3}) {
    const DistContext context(
        {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .world = test::lone_rank(rank, 4)});
    const auto padded = shard_dataset_data_parallel(base, context);
    const auto chunked = shard_dataset_data_parallel(base, context, ShardIndexingMode::kChunked, false);
    const bool is_first = context.data_parallel_rank() == 0;
    EXPECT_EQ(is_first, rank % 2 == 0);
    EXPECT_EQ(all_of(*padded), is_first ? (Ids{0, 2, 4}) : (Ids{1, 3, 4}));
    EXPECT_EQ(all_of(*chunked), is_first ? (Ids{0, 1, 2}) : (Ids{3, 4}));
  }
}

TEST(BufferSortedDataset, Reads_the_base_in_the_order_of_the_epoch) {
  const auto base = std::make_shared<const Numbers>(40);
  const BufferSortedDataset sorted(base, {.buffer_size = 20, .batch_size = 4, .seed = 3});
  for (const std::int64_t epoch : {0, 1}) {
    const Ids all = all_of(sorted, epoch);
    for (std::size_t first = 0; first < all.size(); first += 4) {  // keys repeat every five items: a batch has one key
      for (std::size_t i = first; i < first + 4; ++i) EXPECT_EQ(all[i] * 7 % 5, all[first] * 7 % 5);
    }
    const std::set<std::int64_t> seen(all.begin(), all.end());
    EXPECT_EQ(seen.size(), 40U);
    EXPECT_EQ(*seen.begin(), 1000 * epoch);
  }
}

TEST(ShuffledDataset, Permutes_each_epoch_anew) {
  const ShuffledDataset<std::int64_t> shuffled(std::make_shared<const Numbers>(30), 5);
  const Ids first = all_of(shuffled, 0);
  Ids second = all_of(shuffled, 1);
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), 30U);
  for (std::int64_t& sample : second) sample -= 1000;
  EXPECT_EQ(std::set(second.begin(), second.end()).size(), 30U);
  EXPECT_NE(first, second);
}

TEST(MixtureDataset, Ends_before_a_source_begins_again_and_goes_on_in_the_next_epoch) {
  const MixtureDataset<std::int64_t> mixture(
      {{std::make_shared<const Numbers>(3), 1}, {std::make_shared<const Numbers>(100), 2}});
  // The weights are 1/3 and 2/3. Samples of the first source are due at 1.5, 4.5, 7.5, 10.5, and of the second at 0.75,
  // 2.25, 3.75, ...
  ASSERT_EQ(mixture.size(), 10);
  EXPECT_THAT(all_of(mixture), ElementsAre(0, 0, 1, 2, 1, 3, 4, 2, 5, 6));
  EXPECT_THAT(all_of(mixture, 1), ElementsAre(1000, 7, 8, 1001, 9, 10, 1002, 11, 12, 2000));
}

TEST(PackedDataset, Fills_sequences_with_documents_whose_positions_and_labels_are_their_own) {
  const auto source = std::make_shared<const test::GivenDocuments>(
      std::vector<Ids>{{10, 11, 12, 13}, {20, 21}, {30, 31, 32}, {40}, {50, 51}});
  const PackedDataset packed(FilteredDocuments(source, {.max_positions = 5}), {.buffer_size = 10});
  ASSERT_EQ(packed.size(), 2);
  const TokenSample first = packed.get(0), second = packed.get(1);
  EXPECT_THAT(values(first.input_ids), ElementsAre(10, 11, 12, 30, 31));
  EXPECT_THAT(values(first.labels), ElementsAre(11, 12, 13, 31, 32));
  EXPECT_THAT(values(first.position_ids), ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(first.packed_lengths, ElementsAre(3, 2));
  EXPECT_THAT(values(second.input_ids), ElementsAre(20, 50, 0, 0, 0));
  EXPECT_THAT(values(second.labels), ElementsAre(21, 51, kIgnoreIndex, kIgnoreIndex, kIgnoreIndex));
  EXPECT_THAT(second.packed_lengths, ElementsAre(1, 1, 3));
}

TEST(PackedDataset, Has_the_boundaries_of_its_documents_in_batches) {
  const auto source =
      std::make_shared<const test::GivenDocuments>(std::vector<Ids>{{1, 2, 3, 4}, {5, 6}, {7, 8, 9}, {1, 2}});
  const PackedDataset packed(FilteredDocuments(source, {.max_positions = 4}), {.buffer_size = 10});
  const TokenBatch batch = collate_fixed(std::vector{packed.get(0), packed.get(1)});
  ASSERT_TRUE(batch.packed.has_value());
  EXPECT_EQ(batch.packed->cu_seqlens.scalar_type(), at::kInt);
  EXPECT_THAT(values(batch.packed->cu_seqlens), ElementsAre(0, 3, 4, 6, 7, 8));
  EXPECT_EQ(batch.packed->max_length, 3);
  EXPECT_THAT(batch.lengths, ElementsAre(4, 3));
  const DocumentDataset single(FilteredDocuments(source, {.max_positions = 4}));
  EXPECT_FALSE(collate_padded(std::vector{single.get(0), single.get(1)}).packed.has_value());
  EXPECT_THROW((void)collate_padded(std::vector{packed.get(0)}), ConfigError);
}

TEST(DocumentDataset, Of_nothing_but_documents_without_labels_is_one_column_of_padding) {
  const auto source = std::make_shared<const test::GivenDocuments>(std::vector<Ids>{{1}, {}});
  const DocumentDataset dataset(FilteredDocuments(source, {.max_positions = 4, .too_short = ShortDocuments::kKeep}));
  const TokenBatch batch = collate_padded(std::vector{dataset.get(0), dataset.get(1)});
  EXPECT_THAT(values(batch.labels), ElementsAre(kIgnoreIndex, kIgnoreIndex));
}

}  // namespace
}  // namespace d9d::dataset_views_test
