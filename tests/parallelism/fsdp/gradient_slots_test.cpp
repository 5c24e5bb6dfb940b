#include "d9d/parallelism/fsdp/gradient_slots.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace d9d::test::gradient_slots_test {
namespace {

// Slots of 100 bytes over one set of ranks, and of 40 bytes over another.
struct Slots {
  explicit Slots(std::int64_t num_slots) : slots(static_cast<std::size_t>(num_slots)) {
    slots.set_memory(*ranks, memory = at::empty({num_slots * 100}, at::kByte));
    slots.set_memory(*other_ranks, other_memory = at::empty({num_slots * 40}, at::kByte));
  }
  // The slot that the unit gets; -1: none.
  [[nodiscard]] std::int64_t slot_of(std::size_t unit) const {
    const auto allocate = slots.memory_of(unit);
    return allocate ? allocate(*ranks, 1).storage_offset() / 100 : -1;
  }

  const std::shared_ptr<World> world = lone_rank(0, 2);
  const std::shared_ptr<Communicator> ranks = world->communicator(group_of(*world, "dense", {0, 1}));
  const std::shared_ptr<Communicator> other_ranks = world->communicator(group_of(*world, "expert", {0}));
  GradientSlots slots;
  at::Tensor memory, other_memory;
};

TEST(GradientSlots, Give_units_slots_in_turn) {
  Slots two(2);
  EXPECT_EQ(two.slot_of(7), -1);
  two.slots.take(7);
  two.slots.take(5);
  EXPECT_EQ(two.slot_of(7), 0);
  EXPECT_EQ(two.slot_of(5), 1);
  two.slots.give_back(7, {});
  EXPECT_EQ(two.slot_of(7), -1);
  two.slots.give_back(5, {});
  two.slots.take(3);
  EXPECT_EQ(two.slot_of(3), 0);
}

TEST(GradientSlots, Leave_a_unit_the_slot_that_it_has) {
  Slots two(2);
  two.slots.take(7);
  two.slots.take(7);
  two.slots.take(5);
  EXPECT_EQ(two.slot_of(7), 0);
  EXPECT_EQ(two.slot_of(5), 1);
}

// Even if another slot is free: the order of slots must not depend on when a rank's reductions end.
TEST(GradientSlots, Give_none_while_another_unit_holds_the_next_slot) {
  Slots two(2);
  for (const std::size_t unit : {0, 1, 2}) two.slots.take(unit);
  EXPECT_EQ(two.slot_of(2), -1);
  two.slots.give_back(1, {});
  two.slots.take(2);
  EXPECT_EQ(two.slot_of(2), -1);
  two.slots.give_back(0, {});
  two.slots.take(2);
  EXPECT_EQ(two.slot_of(2), 0);
}

TEST(GradientSlots, Give_nothing_where_there_are_none) {
  GradientSlots none;
  none.take(0);
  EXPECT_FALSE(none.memory_of(0));
  none.give_back(0, {});
  none.abandon();
  EXPECT_EQ(none.size(), 0);
}

TEST(GradientSlots, Put_the_parts_of_a_unit_one_after_the_other) {
  Slots two(2);
  two.slots.take(0);
  two.slots.take(1);
  const auto allocate = two.slots.memory_of(1);
  const auto expect_part = [](const at::Tensor& part, const at::Tensor& memory, std::int64_t offset,
                              std::int64_t size) {
    EXPECT_TRUE(part.is_alias_of(memory));
    EXPECT_EQ(part.storage_offset(), offset);
    EXPECT_EQ(part.numel(), size);
  };
  expect_part(allocate(*two.ranks, 60), two.memory, 100, 60);
  expect_part(allocate(*two.other_ranks, 30), two.other_memory, 40, 30);
  expect_part(allocate(*two.ranks, 40), two.memory, 160, 40);
  EXPECT_THROW((void)allocate(*two.ranks, 1), std::exception);
  expect_part(two.slots.memory_of(1)(*two.ranks, 100), two.memory, 100, 100);  // each backward writes from the start
}

TEST(GradientSlots, Know_the_ranks_that_they_have_memory_for) {
  Slots one(1);
  one.slots.drop_memory(*one.ranks);
  EXPECT_FALSE(one.slots.has_memory(*one.ranks));
  EXPECT_TRUE(one.slots.has_memory(*one.other_ranks));
}

TEST(GradientSlots, Go_on_with_the_next_slot_after_a_step_and_with_the_first_after_an_exception) {
  Slots two(2);
  two.slots.take(0);
  two.slots.clear();
  EXPECT_EQ(two.slot_of(0), -1);
  two.slots.take(1);
  EXPECT_EQ(two.slot_of(1), 1);
  two.slots.give_back(1, {});
  two.slots.take(2);
  two.slots.abandon();
  two.slots.take(3);
  EXPECT_EQ(two.slot_of(2), -1);
  EXPECT_EQ(two.slot_of(3), 0);
}

}  // namespace
}  // namespace d9d::test::gradient_slots_test
