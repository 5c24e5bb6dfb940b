#include "d9d/data/order/bin_packed_order.h"

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::bin_packed_order_test {
namespace {

using ::testing::ElementsAre;
using Items = std::vector<std::int64_t>;
using Options = BinPackedOrder::Options;

Options of_lengths(const Items& lengths, Options options) {
  options.size = std::ssize(lengths);
  options.length = [lengths](std::int64_t item) { return lengths[static_cast<std::size_t>(item)]; };
  return options;
}

std::vector<Items> all_of(const BinPackedOrder& order, std::int64_t epoch = 0) {
  std::vector<Items> bins;
  for (std::int64_t bin = 0; bin < order.size(); ++bin) bins.push_back(order(bin, epoch));
  return bins;
}

TEST(BinPackedOrder, Fills_the_fullest_bin_that_has_room) {
  // 7 and 6 begin two bins, with room 3 and 4. 4 goes to the 6, and 3 to the 7. 2 and 1 form a third bin.
  EXPECT_THAT(all_of(BinPackedOrder(of_lengths({7, 6, 4, 3, 2, 1}, {.capacity = 10, .buffer_size = 6}))),
              ElementsAre(Items{0, 3}, Items{1, 2}, Items{4, 5}));
}

TEST(BinPackedOrder, Packs_each_buffer_by_itself) {
  EXPECT_THAT(all_of(BinPackedOrder(of_lengths({5, 5, 5, 5, 5}, {.capacity = 10, .buffer_size = 3}))),
              ElementsAre(Items{0, 1}, Items{2}, Items{3, 4}));
}

TEST(BinPackedOrder, Has_every_document_once_within_the_capacity_in_every_epoch) {
  std::mt19937 random(3);
  for (const bool shuffle : {false, true}) {
    Items lengths(1000);
    for (auto& length : lengths) length = 1 + static_cast<std::int64_t>(random() % 20 * (random() % 6));
    const BinPackedOrder order(
        of_lengths(lengths, {.capacity = 100, .buffer_size = 64, .seed = 5, .shuffle = shuffle}));
    std::set<std::vector<Items>> different;
    for (const std::int64_t epoch : {0, 1, 2}) {
      const auto bins = all_of(order, epoch);
      different.insert(bins);
      Items seen;
      for (const Items& bin : bins) {
        std::int64_t filled = 0;
        for (const std::int64_t item : bin) filled += lengths[item];
        EXPECT_LE(filled, 100);
        seen.insert(seen.end(), bin.begin(), bin.end());
      }
      std::ranges::sort(seen);
      Items all(1000);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(seen, all);
    }
    EXPECT_EQ(different.size(), shuffle ? 3U : 1U);
    const double total = std::accumulate(lengths.begin(), lengths.end(), 0.0);
    EXPECT_LT(static_cast<double>(order.size()), 1.05 * total / 100 + 16);  // about one additional bin per buffer
  }
}

// The bins of a buffer stay together, so reading bins in order packs each buffer only once.
TEST(BinPackedOrder, Shuffles_buffers_and_the_bins_of_each) {
  std::int64_t num_asked = 0;
  const BinPackedOrder order({.size = 4000,
                              .length = [&num_asked](std::int64_t item) { return ++num_asked, 1 + item * 7 % 13; },
                              .capacity = 20,
                              .buffer_size = 100,
                              .seed = 5,
                              .shuffle = true});
  const auto first = all_of(order, 0), second = all_of(order, 1);
  EXPECT_EQ(num_asked, 3 * 4000);
  std::map<std::int64_t, std::size_t> place;  // the bin of each document in the first epoch
  for (std::size_t bin = 0; bin < first.size(); ++bin) {
    for (const std::int64_t item : first[bin]) place[item] = bin;
  }
  std::size_t num_rising = 0;
  double moved = 0;
  for (std::size_t bin = 0; bin < second.size(); ++bin) {
    const auto before = static_cast<double>(place.at(second[bin].front()));
    moved += std::abs(before - static_cast<double>(bin)) / static_cast<double>(second.size());
    if (bin > 0 && second[bin].front() > second[bin - 1].front()) ++num_rising;
  }
  // Two random positions in [0, 1] have an average distance of 1/3, and half of all pairs of neighbours ascend. The
  // bounds are about three standard deviations for 40 buffers and for 1,400 bins.
  EXPECT_NEAR(moved / static_cast<double>(second.size()), 1.0 / 3, 0.12);
  EXPECT_NEAR(static_cast<double>(num_rising) / static_cast<double>(second.size()), 0.5, 0.05);
}

TEST(BinPackedOrder, Is_computed_from_any_bin_on) {
  Items lengths(200);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = 1 + static_cast<std::int64_t>(i * 7 % 13);
  const Options options = of_lengths(lengths, {.capacity = 20, .buffer_size = 16, .seed = 5, .shuffle = true});
  const auto expected = all_of(BinPackedOrder(options), 4);
  for (std::int64_t bin = std::ssize(expected) - 1; bin >= 0; bin -= 5) {
    EXPECT_EQ(BinPackedOrder(options)(bin, 4), expected[bin]);
  }
}

TEST(BinPackedOrder, Is_refused_without_documents) {
  EXPECT_THROW(BinPackedOrder(of_lengths({}, {.capacity = 4, .buffer_size = 4})), ConfigError);
}

}  // namespace
}  // namespace d9d::bin_packed_order_test
