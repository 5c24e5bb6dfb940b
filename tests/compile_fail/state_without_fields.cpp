// The state of a task that does not list its members, so that its tensors could not be detached.
// expect: lists its members in .static constexpr auto fields
#include "d9d/internals/pipeline_state/microbatch_states.h"

struct State {
  at::Tensor labels;
};

d9d::MicrobatchStates<State> states;
