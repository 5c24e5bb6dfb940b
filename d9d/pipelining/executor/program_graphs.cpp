#include "d9d/pipelining/executor/program_graphs.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"

namespace d9d {

ProgramGraphs::Leaves ProgramGraphs::run(const ComputeAction& action, Leaves inputs, const Work& work) {
  Computation& computation = computations_[action];
  if (!is_recorded_) {
    computation.inputs = inputs;
    computation.graph = make_graph_();
    computation.graph->capture([&] { computation.outputs = work(std::move(inputs)); });
  } else {
    D9D_ASSERT(computation.graph != nullptr, "no record of ", to_text(action));
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].is_same(computation.inputs[i])) computation.inputs[i].detach().copy_(inputs[i]);
    }
  }
  computation.graph->replay();
  return computation.outputs;
}

}  // namespace d9d
