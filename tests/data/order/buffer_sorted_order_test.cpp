#include "d9d/data/order/buffer_sorted_order.h"

#include <numeric>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::buffer_sorted_order_test {
namespace {

using ::testing::ElementsAre;
using Items = std::vector<std::int64_t>;
using Options = BufferSortedOrder::Options;

Options of_keys(const Items& keys, Options options) {
  options.size = std::ssize(keys);
  options.sort_key = [keys](std::int64_t item) { return keys[static_cast<std::size_t>(item)]; };
  return options;
}

Items all_of(const BufferSortedOrder& order, std::int64_t size, std::int64_t epoch = 0) {
  Items items;
  for (std::int64_t i = 0; i < size; ++i) items.push_back(order(i, epoch));
  return items;
}

// The orders of d9d 0.24, which were checked against an independent implementation.
TEST(BufferSortedOrder, Repeats_the_legacy_orders) {
  Items rising(12);
  std::iota(rising.begin(), rising.end(), 0);
  const Items keys{5, 5, 3, 3, 9, 1, 1, 7, 2, 8};
  const auto legacy = [](const Items& of, std::int64_t buffer, std::int64_t batch, std::uint64_t seed) {
    return all_of(BufferSortedOrder(of_keys(
                      of, {.buffer_size = buffer, .batch_size = batch, .seed = seed, .order = BufferOrder::kLegacy})),
                  std::ssize(of));
  };
  EXPECT_THAT(legacy(rising, 6, 2, 42), ElementsAre(5, 4, 2, 3, 1, 0, 7, 6, 11, 10, 8, 9));
  EXPECT_THAT(legacy(keys, 5, 2, 42), ElementsAre(4, 0, 1, 2, 3, 6, 5, 7, 8, 9));
  EXPECT_THAT(legacy(keys, 10, 4, 0), ElementsAre(9, 4, 1, 7, 0, 3, 5, 2, 6, 8));
}

class RandomAccess : public ::testing::TestWithParam<BufferOrder> {};

TEST_P(RandomAccess, Finds_what_reading_in_order_does) {
  Items keys(103);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::int64_t>(i * 37 % 11);
  const Options options =
      of_keys(keys, {.buffer_size = 20, .batch_size = 4, .seed = 7, .shuffle = true, .order = GetParam()});
  for (const std::int64_t epoch : {0, 1, 5}) {
    const Items expected = all_of(BufferSortedOrder(options), 103, epoch);
    EXPECT_EQ(std::set(expected.begin(), expected.end()).size(), 103U);
    const BufferSortedOrder backwards(options);
    for (std::int64_t i = 102; i >= 0; --i) EXPECT_EQ(backwards(i, epoch), expected[i]) << i;
    const BufferSortedOrder shared(options);
    std::vector<std::jthread> threads;
    for (std::int64_t first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (std::int64_t i = first; i < 103; i += 4) EXPECT_EQ(shared(i, epoch), expected[i]) << i;
      });
    }
  }
}
INSTANTIATE_TEST_SUITE_P(BufferSortedOrder, RandomAccess, ::testing::Values(BufferOrder::kKeyed, BufferOrder::kLegacy));

TEST(BufferSortedOrder, Puts_items_of_neighbouring_keys_into_a_batch) {
  Items keys(64);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::int64_t>(i * 29 % 64);
  const BufferSortedOrder order(of_keys(keys, {.buffer_size = 32, .batch_size = 8, .seed = 3}));
  std::set<std::int64_t> first_keys;
  for (std::int64_t batch = 0; batch < 8; ++batch) {
    Items in_batch;
    for (std::int64_t i = 0; i < 8; ++i) in_batch.push_back(keys[order(batch * 8 + i, 0)]);
    const auto [least, most] = std::ranges::minmax(in_batch);
    Items in_buffer(keys.begin() + batch / 4 * 32, keys.begin() + (batch / 4 + 1) * 32);
    EXPECT_EQ(std::ranges::count_if(in_buffer, [&](std::int64_t key) { return key >= least && key <= most; }), 8);
    first_keys.insert(least);
  }
}

TEST(BufferSortedOrder, Leaves_the_rest_that_fills_no_batch_at_the_end) {
  const Items keys{9, 1, 8, 2, 7, 3, 6};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const BufferSortedOrder order(of_keys(keys, {.buffer_size = 8, .batch_size = 2, .seed = seed}));
    EXPECT_EQ(keys[order(6, 0)], 9);  // the longest, because batches are split off beginning with the shortest
  }
}

TEST(BufferSortedOrder, Depends_on_seed_and_epoch) {
  Items keys(40, 1);
  const auto order_of = [&](std::uint64_t seed, std::int64_t epoch) {
    return all_of(BufferSortedOrder(of_keys(keys, {.buffer_size = 8, .batch_size = 4, .seed = seed, .shuffle = true})),
                  40, epoch);
  };
  EXPECT_EQ(order_of(1, 0), order_of(1, 0));
  EXPECT_NE(order_of(1, 0), order_of(2, 0));
  EXPECT_NE(order_of(1, 0), order_of(1, 1));
}

TEST(BufferSortedOrder, Keeps_buffers_apart_unless_it_shuffles) {
  const Items keys(40, 1);
  const BufferSortedOrder order(of_keys(keys, {.buffer_size = 10, .batch_size = 5, .seed = 1}));
  for (std::int64_t i = 0; i < 40; ++i) EXPECT_EQ(order(i, 3) / 10, i / 10);
}

TEST(BufferSortedOrder, Is_refused_when_a_batch_would_straddle_buffers) {
  const Items keys(10, 1);
  EXPECT_THROW(BufferSortedOrder(of_keys(keys, {.buffer_size = 10, .batch_size = 4})), ConfigError);
  EXPECT_NO_THROW(
      BufferSortedOrder(of_keys(keys, {.buffer_size = 10, .batch_size = 4, .order = BufferOrder::kLegacy})));
  EXPECT_THROW(BufferSortedOrder(of_keys({}, {.buffer_size = 10, .batch_size = 5})), ConfigError);
}

}  // namespace
}  // namespace d9d::buffer_sorted_order_test
