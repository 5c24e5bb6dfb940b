// The loss and the gradients of one step: weighted accumulation over microbatches and ranks, one division, norm,
// clipping.
//
//   backward gets   w_i * L_i                     for each microbatch i of each rank
//   the step's loss   sum(w_i * L_i) / W            with W = sum(w_i)
//   the gradient      sum(w_i * dL_i) / W           then scaled by min(1, max_norm / (norm + 1e-6))
//
// Example
//   GradientManager gradients(context, module, {}, {.max_norm = 1.0});
//   for (i ...) {
//     gradients.begin_microbatch(is_last);
//     ...                                              // forward
//     gradients.add_loss_with_weight(loss, weight);
//     (loss * weight).backward();
//     gradients.end_microbatch();
//   }
//   const StepGradients step = gradients.finish_step({});          // waits for the device
//   if (step.is_usable) optimizer.step(learning_rate);
//   gradients.reset();
//
// With an optimiser that scales gradients the host gives the device its step before it knows the loss:
//   const PendingStep pending = gradients.sum_step({});
//   optimizer.step(learning_rate, pending.grad_scale);             // changes nothing where that is NaN
//   const StepGradients step = gradients.read_step(pending);       // the optimiser still runs
//   if (!step.is_usable) optimizer.forget_step();
//   gradients.refuse_non_finite(step);
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/core/device/host_copy.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/internals/grad_norm/distributed_grad_norm.h"
#include "d9d/internals/grad_sync/gradient_synchronizer.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/modules/gradient_reduction.h"

namespace d9d {

// What one rank brings to the totals of a step.
struct RankReport {
  std::int64_t num_tokens = 0;
  bool wants_to_stop = false;
};

// What the device will know of a step; the same on all ranks.
struct PendingStep {
  // fp64, 0-dim: what the gradients in .grad() are still to be multiplied by; divides by the total weight and clips.
  // NaN where the step is not usable.
  at::Tensor grad_scale;
  // [7] fp64: weighted loss, weight, tokens, wishes to stop, disagreement; norm of the sum, grad_scale
  HostCopy totals;
};

// The same on all ranks.
struct StepGradients {
  double loss = 0.0;
  double norm = 0.0;  // L2, over all parameters, before clipping
  double total_weight = 0.0;
  std::int64_t num_tokens = 0;
  bool stops = false;     // some rank wants to
  bool is_usable = true;  // false: total weight 0, or not finite
  bool is_finite = true;
  double grad_scale = 1.0;  // as PendingStep's
  std::string reason;  // why it is not usable; names the first of this rank's parameters with a gradient not finite
};

// Where the gradients of parameters lie.
enum class GradientMemory {
  kOfStep,  // allocated anew in each step where nothing else wants them in one place
  kKept,    // at the same places in all steps, so that graphs can write them
};

class GradientManager {
 public:
  // The module has storage and layouts. Its reductions sum in config.grad_dtype unless their own configuration names
  // another.
  GradientManager(const DistContext& context, Module& module, const GradientManagerConfig& config,
                  const GradientClippingConfig& clipping, GradientMemory memory = GradientMemory::kOfStep);

  // Before a microbatch's forward.
  void begin_microbatch(bool is_last);
  // loss, weight: scalars; detached.
  void add_loss_with_weight(const at::Tensor& loss, const at::Tensor& weight);
  // Collective: after a microbatch's backward.
  void end_microbatch();

  // The same around a microbatch that a graph captures or replays, with kept memory: whatever is to be summed over
  // ranks is summed when it ends. `received`: as received() was after the capture.
  void begin_replay();
  void end_replay(bool is_last, const std::vector<bool>& received);
  // Which gradients have values in this step: those that the next backward adds to and does not overwrite.
  [[nodiscard]] std::vector<bool> received() const { return synchronizer_->received(); }

  // Collective. Sums gradients, losses and reports over ranks and leaves gradients undivided. Gives work to the device
  // and does not wait for it.
  [[nodiscard]] PendingStep sum_step(const RankReport& report);
  // Waits until the device knows, not for what it was given after sum_step(). Throws CommunicationError, and nothing
  // about loss or norm, where a communication failed on the way; StateError on all ranks where they have not reduced
  // the same, so that the sums are of different things.
  [[nodiscard]] StepGradients read_step(const PendingStep& pending) const;
  // Throws StateError, on all ranks, if the step is not finite and the policy is to stop.
  void refuse_non_finite(const StepGradients& step) const;
  // Multiplies the gradients of all parameters by grad_scale, in at least float32: narrower ones make way for wider.
  // An optimiser that scales gradients itself rounds alike, so that its step then is the same bit for bit.
  void scale_gradients(const StepGradients& step) const;
  // Collective: all of these.
  [[nodiscard]] StepGradients finish_step(const RankReport& report);

  // Forgets gradients and loss.
  void reset();
  // After an exception in a step: reset() for gradients that are not complete. Local.
  void abandon();
  // Collective, after the last step: GradientReduction::close().
  void close();

 private:
  [[nodiscard]] std::string first_non_finite() const;
  [[nodiscard]] at::Tensor sum_over_ranks(const RankReport& report) const;
  [[nodiscard]] at::Tensor grad_scale_of(const at::Tensor& sums, const at::Tensor& norm) const;

  std::vector<std::pair<std::string, ParameterPtr>> parameters_;
  std::shared_ptr<GradientSynchronizer> synchronizer_;
  std::vector<std::shared_ptr<GradientReduction>> reductions_;  // and it
  std::vector<GradNormGroup> norm_groups_;
  DeviceMesh stages_;  // ranks with other layers
  DeviceMesh ranks_;   // all
  bool counts_;        // tensor-parallel ranks have the same losses: the first one's count
  at::Device device_;
  SideStream copies_;
  std::shared_ptr<const World> world_;
  GradientClippingConfig clipping_;
  at::Tensor weighted_loss_;  // undefined: nothing yet
  at::Tensor total_weight_;
};

}  // namespace d9d
