// The interface of classes that sum gradients over ranks while backward runs: FSDP, replicated parameters. The training
// loop, or a user's own loop, calls it where passes and steps begin and end. The training loop calls it around each
// forward and each backward, since a pipeline runs other microbatches in between; a loop that ends each microbatch
// before the next one takes a microbatch as one pass:
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

enum class StagePassKind : std::uint8_t {
  kForward,     // of one microbatch
  kBackward,    // of one microbatch, or half of it
  kMicrobatch,  // forwards and backwards of one microbatch, in any order
};
struct StagePass {
  StagePassKind kind = StagePassKind::kMicrobatch;
  std::int64_t microbatch = 0;               // of forwards and backwards: within the step
  BackwardPart part = BackwardPart::kWhole;  // of backwards. Gradients are complete in the second half
  // The pass is the last of the step in which gradients are completed, whichever microbatch it is of.
  bool is_last = false;
};

class GradientReduction {
 public:
  virtual ~GradientReduction() = default;

  // Local. Called before the first step or after close(). Sets the dtype of sums, as gradient_dtype_of() of core/dtype
  // takes it, unless the reduction's own configuration names one.
  virtual void set_gradient_dtype(std::optional<Dtype> /*dtype*/) {}

  // Local. Called before a pass; one pass runs at a time.
  virtual void begin_pass(const StagePass& pass) = 0;
  // Called after that pass. Collective where it has a backward: reduces everything that is still due, in the same order
  // on all ranks.
  virtual void end_pass() = 0;
  // A microbatch as one pass.
  void begin_microbatch(bool is_last) { begin_pass({.kind = StagePassKind::kMicrobatch, .is_last = is_last}); }
  void end_microbatch() { end_pass(); }
  // Collective. Called after the last microbatch: the current stream waits for the sums, and stored().grad() holds
  // them.
  // Parameters that got no gradient in the step on any rank hold zeros. Parameters may be written from then on.
  virtual void finish() = 0;
  // Local. Clears gradients.
  virtual void clear() = 0;
  // Local. Called after an exception in forward or backward: restores the state before the first pass and clears
  // gradients. Parameters may be written once all ranks have called it; until then other ranks may still read them.
  virtual void abandon() = 0;
  // Collective. Called between steps, around the forwards without gradients of several microbatches, in which no
  // parameter is written: parameters may be gathered ahead, and stay gathered.
  virtual void begin_evaluation() {}
  virtual void end_evaluation() {}
  // Called after finish(). fp64, 0-dim, on the device: 0 if the ranks that sum together have all summed the same
  // gradients in this step, otherwise at least 0.5, which means that the sums are invalid. Undefined if ranks cannot
  // disagree.
  [[nodiscard]] virtual at::Tensor disagreement() const { return {}; }
  // Whether it sums gradients itself. Otherwise it only follows the steps, and another reduction sums them.
  [[nodiscard]] virtual bool sums_gradients() const { return true; }
  // Collective. Called between steps when the job continues without the module or goes to sleep: clears gradients,
  // frees memory that is kept from step to step, and releases mappings of other ranks' memory. The next step makes them
  // again.
  virtual void close() {}
  // How often memory that passes use, beside parameters and buffers, was given back: device work that was captured
  // before the last time is invalid.
  [[nodiscard]] virtual std::int64_t num_closings() const { return 0; }
};

// The reductions of this module and of all modules below, each once, in the order of the modules.
[[nodiscard]] std::vector<std::shared_ptr<GradientReduction>> gradient_reductions(Module& module);

}  // namespace d9d
