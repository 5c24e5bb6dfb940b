#include "d9d/metrics/accumulator.h"

#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::accumulator_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor numbers(std::initializer_list<double> values) { return at::tensor(values, at::kDouble); }

TEST(Accumulator, Combines_updates_element_by_element) {
  Accumulator sum({2}), largest({2}, ReduceOp::kMax), smallest({2}, ReduceOp::kMin);
  for (Accumulator* each : {&sum, &largest, &smallest}) {
    each->update(at::tensor({1, -2}, at::kLong));
    each->update(at::tensor({-3.0F, 4.0F}).requires_grad_());
  }
  EXPECT_TRUE(at::equal(sum.value(), numbers({-2, 2})));
  EXPECT_TRUE(at::equal(largest.value(), numbers({1, 4})));
  EXPECT_TRUE(at::equal(smallest.value(), numbers({-3, -2})));
  EXPECT_FALSE(sum.value().requires_grad());
}

TEST(Accumulator, Has_a_value_that_changes_nothing_until_it_is_updated) {
  for (const auto& [op, neutral] :
       {std::pair(ReduceOp::kSum, 0.0), std::pair(ReduceOp::kMax, -kInfinity), std::pair(ReduceOp::kMin, kInfinity)}) {
    Accumulator accumulator({3}, op);
    for (int i = 0; i < 2; ++i) {
      EXPECT_FALSE(accumulator.has_updates());
      EXPECT_TRUE(at::equal(accumulator.value(), at::full({3}, neutral, at::kDouble))) << to_string(op);
      accumulator.update(at::ones({3}));
      EXPECT_TRUE(at::equal(accumulator.value(), at::ones({3}, at::kDouble))) << to_string(op);
      accumulator.reset();
    }
  }
}

TEST(Accumulator, Shares_no_memory_with_updates) {
  Accumulator accumulator({1});
  const at::Tensor update = at::ones({1}, at::kDouble);
  accumulator.update(update);
  update.fill_(7);
  EXPECT_EQ(accumulator.value().item<double>(), 1);
}

TEST(Accumulator, Of_one_shape_takes_no_other) {
  Accumulator accumulator({2});
  EXPECT_THAT([&] { accumulator.update(at::ones({})); },
              ThrowsMessage<StateError>(HasSubstr("expected values of shape [2] for an accumulator, got []")));
}

TEST(Accumulator, Of_means_is_refused) {
  EXPECT_THAT([] { Accumulator({}, ReduceOp::kAvg); }, ThrowsMessage<StateError>(HasSubstr("got avg")));
}

}  // namespace
}  // namespace d9d::accumulator_test
