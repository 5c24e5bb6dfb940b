// One typed state for each microbatch, which exists from the building of its inputs to the update of its metrics. Its
// tensors never keep an autograd graph alive: they are detached when they are stored and when a scope ends.
//
// Example
//   MicrobatchStates<State> states;
//   states.with(0, [&](State& state) { state.num_correct = ...; });     // detached afterwards, even after an exception
//   states.reset();                                                     // after the step, even after an exception
#pragma once

#include <map>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/core/tree/tree.h"

namespace d9d {

// State satisfies ListsItsTensors; TrainTask, whose type it is, checks that.
template <class State>
class MicrobatchStates {
 public:
  void store(std::int64_t microbatch, State state) {
    detach(state);
    states_.insert_or_assign(microbatch, std::move(state));
  }

  // Returns use(state). Throws StateError if nothing was stored for this microbatch.
  template <class Use>
  decltype(auto) with(std::int64_t microbatch, const Use& use) {
    const auto found = states_.find(microbatch);
    D9D_CHECK(found != states_.end(), StateError, "[internals::microbatch_states] expected a state for microbatch ",
              microbatch, ", got none. Store it when the inputs are built.");
    struct DetachOnExit {
      State& state;
      ~DetachOnExit() { detach(state); }
    } detach_on_exit{found->second};
    return use(found->second);
  }

  void reset() { states_.clear(); }
  [[nodiscard]] bool empty() const { return states_.empty(); }

 private:
  static void detach(State& state) {
    if constexpr (TensorTree<State>) {
      tree_for_each_leaf(state, [](at::Tensor& leaf) {
        if (leaf.defined()) leaf = leaf.detach();
      });
    }
  }

  std::map<std::int64_t, State> states_;
};

}  // namespace d9d
