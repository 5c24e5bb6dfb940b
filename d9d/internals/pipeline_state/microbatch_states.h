// One typed state a microbatch, from the building of its inputs to the update of its metrics. Tensors in it never hold
// a graph: they are detached when stored and when a scope closes.
//
// Example
//   MicrobatchStates<State> states;
//   states.store(0, State{.labels = labels});
//   states.with(0, [&](State& state) { state.num_correct = ...; });     // detached again, also on an exception
//   states.reset();                                                     // after the step, also on an exception
#pragma once

#include <map>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/core/tree/tree.h"

namespace d9d {

// A struct that does not list its members is refused at compile time: its tensors could not be found.
template <class State>
class MicrobatchStates {
  static_assert(ListsItsTensors<State>,
                "the State of a task, and each struct in it, lists its members in `static constexpr auto fields()`, so "
                "that tensors in it are found and detached (d9d/base/record.h)");

 public:
  void store(std::int64_t microbatch, State state) {
    detach(state);
    states_.insert_or_assign(microbatch, std::move(state));
  }

  // use(state). Throws StateError if nothing was stored for this microbatch.
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
