#include "d9d/data/order/mixture_order.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::mixture_order_test {
namespace {

TEST(MixtureOrder, Gives_each_source_its_samples_in_order_without_gaps) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<double> weights(1 + random() % 7);
    for (double& weight : weights) weight = 1.0 + static_cast<double>(random() % 1000);
    const MixtureOrder order(weights);
    std::vector<std::int64_t> counts(weights.size(), 0);
    for (std::int64_t position = 0; position < 2000; ++position) {
      const auto place = order(position);
      ASSERT_EQ(place.index, counts[place.source]++) << position;
      ASSERT_EQ(order.position_of(place), position);
    }
  }
}

TEST(MixtureOrder, Of_two_sources_is_within_half_a_sample_of_the_weights_everywhere) {
  std::mt19937 random(2);
  for (int round = 0; round < 20; ++round) {
    const double weight = (1.0 + static_cast<double>(random() % 999)) / 1000;
    const MixtureOrder order({weight, 1 - weight});
    std::int64_t count = 0;
    for (std::int64_t n = 1; n <= 3000; ++n) {
      count += order(n - 1).source == 0 ? 1 : 0;
      ASSERT_LE(std::abs(static_cast<double>(count) - static_cast<double>(n) * weight), 0.5 + 1e-5) << n;
    }
  }
}

// Each count is t * w for a common time t, within half a sample: the largest (count - 1/2) / w is at most the smallest
// (count + 1/2) / w.
TEST(MixtureOrder, Of_many_sources_is_within_half_a_sample_of_the_weights_at_one_time) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<double> weights(2 + random() % 9);
    for (double& weight : weights) weight = 1.0 + static_cast<double>(random() % 100);
    const MixtureOrder order(weights);
    std::vector<double> counts(weights.size(), 0);
    for (std::int64_t n = 1; n <= 1000; ++n) {
      ++counts[order(n - 1).source];
      double latest = 0, earliest = 1e30;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        latest = std::max(latest, (counts[i] - 0.5) / weights[i]);
        earliest = std::min(earliest, (counts[i] + 0.5) / weights[i]);
      }
      ASSERT_LE(latest, earliest + 1e-5) << n;
    }
  }
}

TEST(MixtureOrder, Is_the_same_far_away) {
  const MixtureOrder order({0.6, 0.3, 0.1});
  constexpr std::int64_t kFar = 1'000'000'000'000;
  std::vector<std::int64_t> next(3, -1);
  for (std::int64_t position = kFar; position < kFar + 1000; ++position) {
    const auto [source, index] = order(position);
    if (next[source] >= 0) {
      EXPECT_EQ(index, next[source]);
    }
    next[source] = index + 1;
  }
  EXPECT_NEAR(static_cast<double>(next[1]) / 1e12, 0.3, 1e-9);
}

TEST(MixtureOrder, Alternates_sources_of_one_weight) {
  const MixtureOrder order({2, 2});
  for (std::int64_t position = 0; position < 10; ++position) {
    EXPECT_EQ(order(position), (MixtureOrder::Place{.source = position % 2, .index = position / 2}));
  }
}

TEST(MixtureOrder, Refuses_weights_that_are_not_positive_or_vanish) {
  EXPECT_THROW(MixtureOrder({}), ConfigError);
  EXPECT_THROW(MixtureOrder({1, 0}), ConfigError);
  EXPECT_THROW(MixtureOrder({1, -1}), ConfigError);
  EXPECT_THROW(MixtureOrder({1, std::nan("")}), ConfigError);
  EXPECT_THROW(MixtureOrder({1, 1e-11}), ConfigError);
}

}  // namespace
}  // namespace d9d::mixture_order_test
