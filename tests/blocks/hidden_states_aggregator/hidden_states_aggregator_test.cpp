#include "d9d/blocks/hidden_states_aggregator/hidden_states_aggregator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/tiny_blocks.h"

namespace d9d::hidden_states_aggregator_test {
namespace {
using Mode = HiddenStatesAggregationMode;

TEST(HiddenStatesAggregator, Takes_the_mean_over_what_the_mask_keeps) {
  const at::Tensor hidden = at::arange(8, at::kDouble).reshape({1, 4, 2});  // rows (0, 1) (2, 3) (4, 5) (6, 7)
  const auto mean = [&](const at::Tensor& mask) {
    HiddenStatesAggregator aggregator(Mode::kMean, mask.reshape({1, 4}));
    aggregator.add(hidden);
    return *aggregator.pack_with_snapshot(std::nullopt);
  };
  const auto row = [](double first, double second) {
    return at::tensor({first, second}, at::kDouble).reshape({1, 1, 2});
  };
  EXPECT_TRUE(at::equal(mean(at::tensor({1, 1, 1, 1}, at::kLong)), row(3, 4)));
  EXPECT_TRUE(at::equal(mean(at::tensor({0, 1, 0, 1}, at::kLong)), row(4, 5)));
  EXPECT_TRUE(at::equal(mean(at::tensor({0, 0, 1, 0}, at::kLong)), row(4, 5)));
}

TEST(HiddenStatesAggregator, Gives_zeros_for_a_sequence_whose_mask_keeps_nothing) {
  HiddenStatesAggregator aggregator(Mode::kMean, at::zeros({2, 3}, at::kLong));
  const at::Tensor hidden = test::normal_leaf({2, 3, 4}, 1);
  aggregator.add(hidden);
  const at::Tensor snapshot = *aggregator.pack_with_snapshot(std::nullopt);
  EXPECT_TRUE(at::equal(snapshot, at::zeros({1, 2, 4}, at::kDouble)));
  snapshot.sum().backward();
  EXPECT_TRUE(hidden.grad().eq(0).all().item<bool>());
}

struct Lifecycle {
  std::int64_t batch, sequence, num_added, num_incoming;
};

void expect_packs(const Lifecycle& sizes) {
  HiddenStatesAggregator aggregator(Mode::kMean, at::ones({sizes.batch, sizes.sequence}, at::kLong));
  const auto hidden = [&](std::int64_t index) { return test::normal({sizes.batch, sizes.sequence, 4}, 2 + index); };
  std::optional<at::Tensor> incoming;
  if (sizes.num_incoming > 0) incoming = test::normal({sizes.num_incoming, sizes.batch, 4}, 1);
  std::vector<at::Tensor> expected;
  if (incoming) expected.push_back(*incoming);
  for (std::int64_t i = 0; i < sizes.num_added; ++i) {
    aggregator.add(hidden(i));
    expected.push_back(hidden(i).mean(1).unsqueeze(0));
  }
  const at::Tensor packed = *aggregator.pack_with_snapshot(incoming);
  EXPECT_EQ(packed.size(0), sizes.num_incoming + sizes.num_added);
  EXPECT_TRUE(at::allclose(packed, at::cat(expected), 1e-12, 1e-12));
  EXPECT_FALSE(aggregator.pack_with_snapshot(std::nullopt));
}

TEST(HiddenStatesAggregator, Puts_incoming_snapshots_in_front_and_forgets_what_it_packed) {
  for (const std::int64_t batch : {1, 2}) {
    for (const std::int64_t sequence : {2, 4}) {
      for (const std::int64_t num_added : {1, 3}) {
        for (const std::int64_t num_incoming : {0, 2}) expect_packs({batch, sequence, num_added, num_incoming});
      }
    }
  }
}

TEST(HiddenStatesAggregator, Lets_gradients_flow) {
  HiddenStatesAggregator aggregator(Mode::kMean, at::tensor({1, 1, 0, 0}, at::kLong).reshape({1, 4}));
  const at::Tensor hidden = test::normal_leaf({1, 4, 2}, 1);
  aggregator.add(hidden);
  aggregator.pack_with_snapshot(std::nullopt)->sum().backward();
  EXPECT_TRUE(at::equal(hidden.grad().select(2, 0), at::tensor({0.5, 0.5, 0.0, 0.0}, at::kDouble).reshape({1, 4})));
}

TEST(HiddenStatesAggregator, That_collects_nothing_gives_back_what_came_in) {
  HiddenStatesAggregator aggregator(Mode::kNo, std::nullopt);
  aggregator.add(test::normal({1, 2, 4}, 1));
  EXPECT_FALSE(aggregator.pack_with_snapshot(std::nullopt));
  const at::Tensor incoming = test::normal({2, 1, 4}, 1);
  EXPECT_TRUE(aggregator.pack_with_snapshot(incoming)->is_same(incoming));
}

TEST(HiddenStatesAggregator, Asks_for_a_mask_for_the_mean) {
  EXPECT_THROW(HiddenStatesAggregator(Mode::kMean, std::nullopt), ConfigError);
}

}  // namespace
}  // namespace d9d::hidden_states_aggregator_test
