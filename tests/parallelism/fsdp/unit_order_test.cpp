#include "d9d/parallelism/fsdp/unit_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace d9d::test::unit_order_test {
namespace {

using Side = UnitOrder::Side;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Forward runs units 0, 1 and 2.
std::vector<UnitOrder::Call> run_forward(UnitOrder& order) {
  std::vector<UnitOrder::Call> calls;
  for (std::size_t unit = 0; unit < 3; ++unit) {
    calls.push_back(order.enter(unit).value());
    order.leave(calls.back());
  }
  order.reverse();
  return calls;
}

// "2]" for the end of unit 2, where its backward begins, "[2" for its start.
std::vector<std::string> go_back_to(UnitOrder& order, const UnitOrder::Call& call, Side side) {
  std::vector<std::string> steps;
  while (order.is_ahead(call, side)) {
    const UnitOrder::Step step = order.step_back();
    const std::string unit = std::to_string(step.unit);
    steps.push_back(step.side == Side::kEnd ? unit + "]" : "[" + unit);
  }
  return steps;
}

TEST(UnitOrder, Goes_back_as_forward_went) {
  UnitOrder order;
  const auto calls = run_forward(order);
  EXPECT_EQ(order.next_in_backward(), 2);
  EXPECT_THAT(go_back_to(order, calls[2], Side::kEnd), ElementsAre("2]"));
  EXPECT_EQ(order.next_in_backward(), 1);
  EXPECT_THAT(go_back_to(order, calls[2], Side::kStart), ElementsAre("[2"));
  EXPECT_THAT(go_back_to(order, calls[0], Side::kStart), ElementsAre("1]", "[1", "0]", "[0"));
  EXPECT_TRUE(order.is_at_start());
  EXPECT_THAT(go_back_to(order, calls[2], Side::kEnd), IsEmpty());
}

TEST(UnitOrder, Passes_what_a_loss_left_out) {
  UnitOrder order;
  const auto calls = run_forward(order);
  EXPECT_THAT(go_back_to(order, calls[1], Side::kEnd), ElementsAre("2]", "[2", "1]"));
}

TEST(UnitOrder, Encloses_a_unit_in_another) {
  UnitOrder order;
  const auto outer = order.enter(0).value();
  const auto inner = order.enter(1).value();
  order.leave(inner);
  order.leave(outer);
  EXPECT_THAT(go_back_to(order, outer, Side::kStart), ElementsAre("0]", "1]", "[1", "[0"));
}

TEST(UnitOrder, Tells_calls_of_a_unit_apart) {
  UnitOrder order;
  const auto first = order.enter(0).value();
  order.leave(first);
  const auto second = order.enter(0).value();
  order.leave(second);
  EXPECT_FALSE(order.goes_on_with(1));
  EXPECT_THAT(go_back_to(order, second, Side::kStart), ElementsAre("0]", "[0"));
  EXPECT_TRUE(order.goes_on_with(0));
  EXPECT_TRUE(order.comes_again_to(0));
  EXPECT_THAT(go_back_to(order, first, Side::kStart), ElementsAre("0]", "[0"));
  EXPECT_FALSE(order.comes_again_to(0));
}

TEST(UnitOrder, Knows_what_forward_comes_to_from_the_second_microbatch_on) {
  UnitOrder order;
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    order.begin_microbatch();
    const auto call = order.enter(0).value();
    EXPECT_EQ(order.next_in_forward(), microbatch == 0 ? std::nullopt : std::optional<std::size_t>(1));
    order.leave(call);
    (void)order.enter(1);
    order.reverse();
    EXPECT_EQ(order.next_in_forward(), microbatch == 0 ? std::nullopt : std::optional<std::size_t>(2));
    (void)order.enter(2);  // a forward after a backward
    while (!order.is_at_start()) (void)order.step_back();
    order.end_microbatch();
  }
  order.begin_microbatch();
  EXPECT_FALSE(order.enter(1).has_value());
}

TEST(UnitOrder, Has_an_order_of_its_own_for_forwards_in_a_backward_pass) {
  UnitOrder order;
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    order.begin_microbatch();
    order.leave(order.enter(0).value());
    order.pause(microbatch);
    order.resume(microbatch);
    EXPECT_EQ(order.next_in_forward(), microbatch == 0 ? std::nullopt : std::optional<std::size_t>(1));
    order.leave(order.enter(1).value());
    while (!order.is_at_start()) (void)order.step_back();
    order.end_microbatch();
  }
  order.begin_microbatch();
  EXPECT_EQ(order.next_in_forward(), 0);
  order.resume(0);
  EXPECT_FALSE(order.enter(0).has_value());
}

TEST(UnitOrder, Has_nothing_to_go_back_to_where_nothing_has_a_backward) {
  UnitOrder order;
  order.forget(order.enter(0).value());
  EXPECT_TRUE(order.is_at_start());
}

}  // namespace
}  // namespace d9d::test::unit_order_test
