#include "d9d/internals/pipeline_state/microbatch_states.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::microbatch_states_test {
namespace {

struct State {
  at::Tensor value;
  int count = 0;
  static constexpr auto fields() { return record<State>(field("value", &State::value), field("count", &State::count)); }
};

at::Tensor with_graph() { return at::ones({2}).set_requires_grad(true) * 2; }

TEST(MicrobatchStates, Keep_values_without_their_graph) {
  MicrobatchStates<State> states;
  states.store(3, {.value = with_graph(), .count = 7});
  states.with(3, [](State& state) {
    EXPECT_FALSE(state.value.requires_grad());
    EXPECT_EQ(state.count, 7);
    state.value = with_graph();
  });
  states.with(3, [](State& state) { EXPECT_FALSE(state.value.requires_grad()); });
}

TEST(MicrobatchStates, Detach_when_the_user_throws) {
  MicrobatchStates<State> states;
  states.store(0, {});
  EXPECT_THROW(states.with(0,
                           [](State& state) {
                             state.value = with_graph();
                             throw std::runtime_error("task failed");
                           }),
               std::runtime_error);
  states.with(0, [](State& state) { EXPECT_FALSE(state.value.requires_grad()); });
}

TEST(MicrobatchStates, Name_the_microbatch_that_has_none) {
  MicrobatchStates<State> states;
  EXPECT_THROW(states.with(1, [](State&) {}), StateError);
}

}  // namespace
}  // namespace d9d::microbatch_states_test
