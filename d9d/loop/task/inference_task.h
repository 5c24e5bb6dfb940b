// What an inference job computes: how a batch becomes model inputs, and what is done with the model's output.
//
// Example
//   class Scores : public InferenceTask<MyTypes> {
//     ForwardInputs<MyTypes> build_forward_inputs(const Batch& batch) override { ... }
//     void process_outputs(const Output& output, const State& state) override { file_.write(output, state.ids); }
//   };
#pragma once

#include "d9d/loop/task/task.h"

namespace d9d {

// AnyTask::create_metrics() is not called. state() is saved with the position in the data, so that a killed job counts
// each sample once when it continues: state() must contain, or make durable, what was processed so far.
template <class Types>
class InferenceTask : public ForwardTask<Types> {
 public:
  using Output = OutputOf<Types>;
  using State = StateOf<Types>;

  // Called once a microbatch, in the order of the data, on ranks with the last stage. Output and state are detached.
  virtual void process_outputs(const Output& output, const State& state) = 0;
};

}  // namespace d9d
