#include "d9d/data/order/global_batch_sampler.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

namespace d9d::global_batch_sampler_test {
namespace {

using ::testing::ElementsAre;
using Options = GlobalBatchSampler::Options;
using Samples = std::vector<std::int64_t>;

GlobalBatchSampler of_rank(Options options, std::int64_t index, std::int64_t size) {
  options.rank = {.index = index, .size = size};
  return GlobalBatchSampler(options);
}

// All samples of one rank, microbatch after microbatch.
Samples all_of_rank(Options options, std::int64_t index, std::int64_t size) {
  const GlobalBatchSampler sampler = of_rank(options, index, size);
  Samples all;
  for (std::int64_t i = 0; i < sampler.num_microbatches().value(); ++i) {
    for (const std::int64_t sample : sampler.samples(i)) all.push_back(sample);
  }
  return all;
}

// The samples that all ranks consume in step `step`.
std::multiset<std::int64_t> step_of_all_ranks(Options options, std::int64_t num_ranks, std::int64_t step) {
  std::multiset<std::int64_t> samples;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    const GlobalBatchSampler sampler = of_rank(options, rank, num_ranks);
    const std::int64_t per_step = options.global_batch_size / (options.microbatch_size * num_ranks);
    for (std::int64_t i = step * per_step; i < (step + 1) * per_step; ++i) {
      for (const std::int64_t sample : sampler.samples(i)) samples.insert(sample);
    }
  }
  return samples;
}

TEST(GlobalBatchSampler, Deals_each_global_batch_in_turns_when_sequential) {
  const Options options{.dataset_size = 8, .global_batch_size = 4};
  EXPECT_THAT(all_of_rank(options, 0, 2), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(all_of_rank(options, 1, 2), ElementsAre(1, 3, 5, 7));
}

TEST(GlobalBatchSampler, Deals_each_global_batch_in_ranges_when_chunked) {
  const Options options{.dataset_size = 8, .global_batch_size = 4, .mode = ShardIndexingMode::kChunked};
  EXPECT_THAT(all_of_rank(options, 0, 2), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(all_of_rank(options, 1, 2), ElementsAre(2, 3, 6, 7));
}

// With one global batch for the whole dataset, the ranks read the shards of a sharded dataset. The tables are those of
// d9d 0.24 for datasets padded to equal shards.
TEST(GlobalBatchSampler, Repeats_the_last_sample_until_ranks_have_equally_many) {
  Options options{.dataset_size = 5, .global_batch_size = 6, .drop_last = false};
  EXPECT_THAT(all_of_rank(options, 0, 2), ElementsAre(0, 2, 4));
  EXPECT_THAT(all_of_rank(options, 1, 2), ElementsAre(1, 3, 4));
  options.mode = ShardIndexingMode::kChunked;
  EXPECT_THAT(all_of_rank(options, 0, 2), ElementsAre(0, 1, 2));
  EXPECT_THAT(all_of_rank(options, 1, 2), ElementsAre(3, 4, 4));
  options.dataset_size = 1;
  for (std::int64_t rank = 0; rank < 3; ++rank) EXPECT_THAT(all_of_rank(options, rank, 3), ElementsAre(0));
}

// The microbatches of a step on all ranks without padding, and the number of padding samples.
std::pair<std::multiset<Samples>, std::int64_t> microbatches_of_rest(const Options& options, std::int64_t num_ranks) {
  std::multiset<Samples> microbatches;
  std::int64_t num_padding = 0;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    const GlobalBatchSampler sampler = of_rank(options, rank, num_ranks);
    for (std::int64_t i = 0; i < sampler.num_microbatches().value(); ++i) {
      Samples real;
      for (const SampleKey& key : sampler.sample_keys(i)) {
        if (key.is_padding) ++num_padding;
        if (!key.is_padding) real.push_back(key.index);
      }
      if (!real.empty()) microbatches.insert(real);
    }
  }
  return {microbatches, num_padding};
}

// For every number of remaining samples, no sample counts twice.
TEST(GlobalBatchSampler, Fills_places_that_no_sample_is_left_for_with_padding) {
  for (const auto mode : {ShardIndexingMode::kSequential, ShardIndexingMode::kChunked}) {
    for (std::int64_t size = 1; size <= 24; ++size) {
      for (const std::int64_t microbatch_size : {1, 2}) {
        Options options{.dataset_size = size,
                        .global_batch_size = 24,
                        .microbatch_size = microbatch_size,
                        .mode = mode,
                        .shuffle = true,
                        .drop_last = false};
        const auto alone = microbatches_of_rest(options, 1);
        EXPECT_EQ(alone.second, 0);
        for (const std::int64_t num_ranks : {2, 3, 4}) {
          const auto [microbatches, num_padding] = microbatches_of_rest(options, num_ranks);
          std::multiset<std::int64_t> seen, expected;
          for (const Samples& each : microbatches) seen.insert(each.begin(), each.end());
          for (std::int64_t i = 0; i < size; ++i) expected.insert(i);
          EXPECT_EQ(seen, expected);
          EXPECT_EQ(num_padding, of_rank(options, 0, num_ranks).num_padding());
          // In these cases microbatches equal those of one rank, so values that depend on a whole microbatch are equal
          // too.
          const bool has_whole_microbatches = mode == ShardIndexingMode::kChunked || microbatch_size == 1;
          EXPECT_TRUE(!has_whole_microbatches || microbatches == alone.first) << size << " over " << num_ranks;
        }
      }
    }
  }
}

TEST(GlobalBatchSampler, Drops_the_rest_of_an_incomplete_global_batch) {
  const Options options{.dataset_size = 11, .global_batch_size = 4};
  EXPECT_THAT(all_of_rank(options, 1, 2), ElementsAre(1, 3, 5, 7));
  EXPECT_EQ(GlobalBatchSampler({.dataset_size = 3, .global_batch_size = 4}).num_microbatches(), 0);
}

TEST(GlobalBatchSampler, Ends_with_a_short_microbatch_when_the_rest_is_kept) {
  const GlobalBatchSampler sampler(
      {.dataset_size = 7, .global_batch_size = 4, .microbatch_size = 2, .drop_last = false});
  EXPECT_EQ(sampler.num_microbatches(), 4);
  EXPECT_THAT(sampler.samples(2), ElementsAre(4, 5));
  EXPECT_THAT(sampler.samples(3), ElementsAre(6));
}

TEST(GlobalBatchSampler, Trains_a_step_on_the_same_samples_whatever_the_layout) {
  for (const auto mode : {ShardIndexingMode::kSequential, ShardIndexingMode::kChunked}) {
    for (const bool repeat : {false, true}) {
      Options options{.dataset_size = 100, .global_batch_size = 24, .mode = mode, .shuffle = true, .seed = 3};
      options.repeat = repeat;
      for (std::int64_t step = 0; step < 4; ++step) {
        const auto expected = step_of_all_ranks(options, 1, step);
        EXPECT_EQ(step_of_all_ranks(options, 2, step), expected);
        options.microbatch_size = 3;
        EXPECT_EQ(step_of_all_ranks(options, 8, step), expected);
        options.microbatch_size = 1;
      }
    }
  }
}

TEST(GlobalBatchSampler, Visits_each_sample_once_in_a_shuffled_epoch) {
  const Samples order = all_of_rank({.dataset_size = 50, .global_batch_size = 10, .shuffle = true, .seed = 1}, 0, 1);
  EXPECT_EQ(std::set(order.begin(), order.end()).size(), 50u);
  EXPECT_NE(order, all_of_rank({.dataset_size = 50, .global_batch_size = 10, .shuffle = true, .seed = 2}, 0, 1));
}

TEST(GlobalBatchSampler, Gives_each_repeated_epoch_an_order_of_its_own) {
  const GlobalBatchSampler sampler(
      {.dataset_size = 6, .global_batch_size = 4, .microbatch_size = 4, .shuffle = true, .seed = 1, .repeat = true});
  EXPECT_EQ(sampler.num_microbatches(), std::nullopt);
  Samples two_epochs;
  for (std::int64_t i = 0; i < 3; ++i) {
    for (const std::int64_t sample : sampler.samples(i)) two_epochs.push_back(sample);
  }
  const Samples first(two_epochs.begin(), two_epochs.begin() + 6), second(two_epochs.begin() + 6, two_epochs.end());
  EXPECT_THAT(first, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(second, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_NE(first, second);
}

TEST(GlobalBatchSampler, Rejects_an_empty_dataset_and_a_rank_outside_the_axis) {
  EXPECT_THROW(GlobalBatchSampler({.dataset_size = 0}), ConfigError);
  EXPECT_THROW(of_rank({.dataset_size = 4, .global_batch_size = 4}, 2, 2), ConfigError);
}

TEST(GlobalBatchSampler, Rejects_a_batch_of_very_many_epochs) {
  const Options options{.dataset_size = 4, .global_batch_size = 4'000, .repeat = true};
  EXPECT_NO_THROW((GlobalBatchSampler(options)));
  Options larger = options;
  larger.global_batch_size = 1'000'000'000;
  EXPECT_THROW((GlobalBatchSampler(larger)), ConfigError);
}

class SamplerState : public ::testing::Test {
 protected:
  Options options{.dataset_size = 100, .global_batch_size = 12, .microbatch_size = 2, .shuffle = true, .seed = 5};
};

TEST_F(SamplerState, Is_the_same_on_all_ranks) {
  EXPECT_EQ(of_rank(options, 0, 3).state(4), of_rank(options, 2, 3).state(4));
}

TEST_F(SamplerState, Resumes_where_it_was_saved) {
  const GlobalBatchSampler sampler(options);
  for (const std::int64_t consumed : {0, 1, 6, 7, 48}) EXPECT_EQ(sampler.resume(sampler.state(consumed)), consumed);
}

TEST_F(SamplerState, Resumes_on_another_number_of_ranks_between_steps) {
  const nlohmann::json after_four_steps = of_rank(options, 1, 3).state(4 * 2);
  EXPECT_EQ(of_rank(options, 0, 1).resume(after_four_steps), 4 * 6);
  EXPECT_EQ(of_rank(options, 5, 6).resume(after_four_steps), 4 * 1);
  EXPECT_THROW((void)of_rank(options, 0, 1).resume(of_rank(options, 1, 3).state(1)), StateError);
}

TEST_F(SamplerState, Is_refused_when_the_order_is_another) {
  const nlohmann::json saved = GlobalBatchSampler(options).state(6);
  Options other_seed = options, other_data = options, unshuffled = options;
  other_seed.seed = 6;
  other_data.dataset_size = 101;
  unshuffled.shuffle = false;
  for (const Options& other : {other_seed, other_data, unshuffled}) {
    EXPECT_THROW((void)GlobalBatchSampler(other).resume(saved), StateError);
  }
}

TEST_F(SamplerState, Ignores_the_seed_of_an_order_that_is_not_shuffled) {
  options.shuffle = false;
  const nlohmann::json saved = GlobalBatchSampler(options).state(6);
  options.seed = 6;
  EXPECT_EQ(GlobalBatchSampler(options).resume(saved), 6);
}

TEST_F(SamplerState, Is_refused_when_it_is_something_else) {
  const GlobalBatchSampler sampler(options);
  nlohmann::json negative = sampler.state(1);
  negative["num_samples"] = -2;
  for (const nlohmann::json& other : {nlohmann::json(), nlohmann::json{{"order", 3}}, negative}) {
    EXPECT_THROW((void)sampler.resume(other), StateError) << other;
  }
}

// Each number occurs once over all ranks, for the same microbatch as in a job of one rank.
TEST(GlobalBatchSampler, Numbers_the_microbatches_of_a_step_as_one_rank_does) {
  const std::vector<Options> all_options = {
      {.dataset_size = 24, .global_batch_size = 12, .mode = ShardIndexingMode::kSequential},
      {.dataset_size = 24, .global_batch_size = 12, .mode = ShardIndexingMode::kChunked},
      {.dataset_size = 24, .global_batch_size = 12, .microbatch_size = 2, .mode = ShardIndexingMode::kChunked},
      {.dataset_size = 30, .global_batch_size = 12, .mode = ShardIndexingMode::kChunked, .drop_last = false},
      {.dataset_size = 24, .global_batch_size = 12, .mode = ShardIndexingMode::kChunked, .repeat = true}};
  for (const Options& options : all_options) {
    const GlobalBatchSampler alone = of_rank(options, 0, 1);
    const std::int64_t per_step = 12 / options.microbatch_size;
    for (const std::int64_t num_ranks : {2, 3, 6}) {
      std::set<std::int64_t> numbers[2];
      for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
        const GlobalBatchSampler sampler = of_rank(options, rank, num_ranks);
        for (std::int64_t i = 0; i < 2 * per_step / num_ranks; ++i) {
          const std::int64_t step = i / (per_step / num_ranks), number = sampler.number_in_step(i);
          EXPECT_TRUE(numbers[step].insert(number).second) << number << " of rank " << rank;
          EXPECT_EQ(sampler.samples(i), alone.samples(step * per_step + number)) << number << " of rank " << rank;
        }
      }
      EXPECT_EQ(*numbers[0].rbegin(), per_step - 1);
    }
  }
}

TEST(GlobalBatchSampler, Numbers_a_rest_without_gaps_when_chunked) {  // 6 samples left for 3 ranks of 2 microbatches
  const Options options{
      .dataset_size = 6, .global_batch_size = 12, .mode = ShardIndexingMode::kChunked, .drop_last = false};
  std::vector<std::int64_t> numbers;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    for (const std::int64_t i : {0, 1}) numbers.push_back(of_rank(options, rank, 3).number_in_step(i));
  }
  EXPECT_THAT(numbers, ElementsAre(0, 1, 2, 3, 4, 5));
}

}  // namespace
}  // namespace d9d::global_batch_sampler_test
