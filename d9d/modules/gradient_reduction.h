// What sums gradients over ranks while backward runs: FSDP, replicated parameters. The loop, or a loop of your own,
// tells it where microbatches and steps begin and end.
//
// Example
//   for (std::size_t i = 0; i < microbatches.size(); ++i) {
//     for (const auto& reduction : reductions) reduction->begin_microbatch(i + 1 == microbatches.size());
//     loss_of(model, microbatches[i]).backward();
//     for (const auto& reduction : reductions) reduction->end_microbatch();
//   }
//   for (const auto& reduction : reductions) reduction->finish();    // .grad() of stored() is the sum over ranks
//   ...                                                             // divide, clip, optimiser
//   for (const auto& reduction : reductions) reduction->clear();
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "d9d/base/dtype.h"
#include "d9d/modules/module.h"

namespace d9d {

class GradientReduction {
 public:
  virtual ~GradientReduction() = default;

  // Local, before the first step or after close(): the dtype of sums, as gradient_dtype_of() of core/dtype takes it,
  // where the reduction's own configuration names none.
  virtual void set_gradient_dtype(std::optional<Dtype> /*dtype*/) {}

  // Local. Before the forward of a microbatch that will have a backward.
  virtual void begin_microbatch(bool is_last) = 0;
  // Collective. After its backward: whatever this microbatch still owes is reduced, in one order on all ranks.
  virtual void end_microbatch() = 0;
  // Collective. After the last microbatch: the current stream waits for the sums, and stored().grad() holds them.
  // Parameters that got no gradient in the step on any rank hold zeros. From then on parameters may be written.
  virtual void finish() = 0;
  // Local. Forgets gradients.
  virtual void clear() = 0;
  // Local. After an exception in forward or backward: as before begin_microbatch, gradients forgotten. Parameters may
  // be written once all ranks have come here: until then others may still read them.
  virtual void abandon() = 0;
  // After finish(): fp64, 0-dim, on the device: 0 where the ranks that sum together have summed the same things in this
  // step, else 0.5 or more, so that the sums mean nothing. Undefined: there is nothing that could differ.
  [[nodiscard]] virtual at::Tensor disagreement() const { return {}; }
  // Collective, between steps, where the job goes on without the module or offloads its parameters: lets go of what
  // ranks hold of each other's memory. The next step takes it again.
  virtual void close() {}
};

// Those that hang on this module or below, each once, in the order of the modules.
[[nodiscard]] std::vector<std::shared_ptr<GradientReduction>> gradient_reductions(Module& module);

}  // namespace d9d
