// A task and its types. Its functions are only declared, with the names that it inherits: for functions that spell a
// missing type's own name, the compiler adds that they override nothing.
#include "d9d/loop/task/task.h"

#include <variant>

#include <ATen/core/Tensor.h>

struct Words {
  at::Tensor ids;
#ifndef batch_without_fields
  // expect: Types::Batch, and each struct in it, must list its members in `static constexpr auto fields()`
  static constexpr auto fields() { return d9d::record<Words>(d9d::field("ids", &Words::ids)); }
#endif
};

struct Kept {
  at::Tensor labels;
#ifndef state_without_fields
  // expect: Types::State, and each struct in it, must list its members in `static constexpr auto fields()`
  static constexpr auto fields() { return d9d::record<Kept>(d9d::field("labels", &Kept::labels)); }
#endif
};

struct Types {
#ifndef types_without_batch
  // expect: the Types of a task need `using Batch = ...;`: one collated microbatch
  using Batch = Words;
#endif
#ifndef types_without_input
  // expect: the Types of a task need `using Input = ...;`: what enters the first stage
  using Input = at::Tensor;
#endif
#ifndef types_without_shared
  // expect: the Types of a task need `using Shared = ...;`: what every stage gets (std::monostate: nothing)
  using Shared = std::monostate;
#endif
#ifndef types_without_output
  // expect: the Types of a task need `using Output = ...;`: what forward of the last stage returns
  using Output = at::Tensor;
#endif
#ifdef state_of_nothing
  // expect: Types::State must be a type with values: std::monostate if nothing is kept of a microbatch
  using State = void;
#elif !defined types_without_state
  // expect: the Types of a task need `using State = ...;`: what is kept of a microbatch until its metrics are updated
  using State = Kept;
#endif
};

struct Task : d9d::TrainTask<Types> {
  d9d::ForwardInputs<Types> build_forward_inputs(const Batch& batch) override;
#ifdef loss_without_schedule
  // expect: marked ‘override’, but does not override
  d9d::LossResult compute_loss(const Output& output, State& state) override;
#else
  d9d::LossResult compute_loss(const Output& output, State& state, const d9d::JobSchedule& schedule) override;
#endif
};
