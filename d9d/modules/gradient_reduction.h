// The interface of classes that sum gradients over ranks while backward runs: FSDP, replicated parameters. The training
// loop, or a user's own loop, calls it where microbatches and steps begin and end.
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

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "d9d/base/dtype.h"
#include "d9d/core/autograd/backward_part.h"
#include "d9d/modules/module.h"

namespace d9d {

class GradientReduction {
 public:
  virtual ~GradientReduction() = default;

  // Local. Called before the first step or after close(). Sets the dtype of sums, as gradient_dtype_of() of core/dtype
  // takes it, unless the reduction's own configuration names one.
  virtual void set_gradient_dtype(std::optional<Dtype> /*dtype*/) {}

  // Local. Called before the forward of a microbatch that will have a backward.
  virtual void begin_microbatch(bool is_last) = 0;
  // Collective. Called after the backward: performs all outstanding reductions of this microbatch, in the same order on
  // all ranks.
  virtual void end_microbatch() = 0;
  // A pipeline stage runs forwards of other microbatches between a microbatch's forward and its backward. It calls the
  // following instead of the two above, around forward and around backward; one pass runs at a time. A split backward
  // is two passes: gradients are complete in the second, and the first may only write to their places. is_last: the
  // pass is the stage's last of the step, of whichever microbatch, and not a first half.
  virtual void begin_forward_pass(std::int64_t /*microbatch*/) {}
  virtual void end_forward_pass(std::int64_t /*microbatch*/) {}
  virtual void begin_backward_pass(std::int64_t /*microbatch*/, BackwardPart /*part*/, bool is_last) {
    begin_microbatch(is_last);
  }
  virtual void end_backward_pass() { end_microbatch(); }
  // Collective. Called after the last microbatch: the current stream waits for the sums, and stored().grad() holds
  // them.
  // Parameters that got no gradient in the step on any rank hold zeros. Parameters may be written from then on.
  virtual void finish() = 0;
  // Local. Clears gradients.
  virtual void clear() = 0;
  // Local. Called after an exception in forward or backward: restores the state before begin_microbatch and clears
  // gradients. Parameters may be written once all ranks have called it; until then other ranks may still read them.
  virtual void abandon() = 0;
  // Called after finish(). fp64, 0-dim, on the device: 0 if the ranks that sum together have all summed the same
  // gradients in this step, otherwise at least 0.5, which means that the sums are invalid. Undefined if ranks cannot
  // disagree.
  [[nodiscard]] virtual at::Tensor disagreement() const { return {}; }
  // Whether it sums gradients itself. Otherwise it only follows the steps, and another reduction sums them.
  [[nodiscard]] virtual bool sums_gradients() const { return true; }
  // Collective. Called between steps when the job continues without the module or offloads its parameters: releases
  // mappings of other ranks' memory. The next step opens them again.
  virtual void close() {}
};

// The reductions of this module and of all modules below, each once, in the order of the modules.
[[nodiscard]] std::vector<std::shared_ptr<GradientReduction>> gradient_reductions(Module& module);

}  // namespace d9d
