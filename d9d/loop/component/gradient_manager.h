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
//   const StepGradients step = gradients.apply(optimizer, learning_rate);
//   gradients.reset();
#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/core/device/host_copy.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/internals/grad_norm/distributed_grad_norm.h"
#include "d9d/internals/grad_sync/bucketed_reduction.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/modules/gradient_reduction.h"
#include "d9d/optim/optimizer.h"

namespace d9d {

// What one rank brings to the totals of a step.
struct RankReport {
  std::int64_t num_tokens = 0;
  bool wants_to_stop = false;
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
  double grad_scale = 1.0;  // factor on the summed gradients: divides by the total weight and clips
  std::string reason;  // why it is not usable; names the first of this rank's parameters with a gradient not finite
};

// Calls the optimiser's step, and does something before or after it.
using AroundStep = std::function<void(const std::function<void()>& step)>;

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
  [[nodiscard]] std::vector<bool> received() const { return bucketed_reduction_->received(); }

  // Collective, after the last microbatch: sums gradients, losses and reports over ranks and steps the optimiser,
  // unless the step is not usable; then parameters and optimiser stay as they were.
  //
  // An optimiser that scales gradients (ScalesGradients) gets its step before the host knows the loss, divides and
  // clips as it reads them, and the host waits only for the loss and the norm. Any other gets gradients that are
  // divided and clipped, in at least float32, after that wait; so does one whose step `around` is called for. Both
  // round alike: the parameters become the same bit for bit, and ranks may differ in whether they have an `around`.
  //
  // Throws CommunicationError, and says nothing about loss or norm, where a communication failed in the step. Throws
  // StateError on all ranks if they have not reduced the same sharded modules, or if the step is not finite and the
  // policy is to stop.
  StepGradients apply(Optimizer& optimizer, double learning_rate, const RankReport& report = {},
                      const AroundStep& around = {});
  // Collective: the same without an optimiser. Gradients are divided and clipped if the step is usable.
  [[nodiscard]] StepGradients finish_step(const RankReport& report);

  // Forgets gradients and loss.
  void reset();
  // After an exception in a step: reset() for gradients that are not complete. Local.
  void abandon();
  // Collective, after the last step: GradientReduction::close().
  void close();

 private:
  // What the device will know about a step; the same on all ranks.
  struct Pending {
    // fp64, 0-dim: divides the gradients in .grad() by the total weight and clips them. NaN where the step is not
    // usable.
    at::Tensor grad_scale;
    // [7] fp64: weighted loss, weight, tokens, number of ranks that want to stop, disagreement, norm, grad_scale
    HostCopy totals;
  };

  // Does not wait for the device; gradients are summed and not divided.
  [[nodiscard]] Pending sum_step(const RankReport& report);
  // Waits until the device knows, but not for work that it was given after sum_step().
  [[nodiscard]] StepGradients read_step(const Pending& pending) const;
  void refuse_non_finite(const StepGradients& step) const;
  // Multiplies the gradients of all parameters, in at least float32: narrower gradients are replaced by wider ones.
  void scale_gradients(const StepGradients& step) const;
  [[nodiscard]] std::string first_non_finite() const;
  [[nodiscard]] at::Tensor sum_over_ranks(const RankReport& report) const;
  [[nodiscard]] at::Tensor grad_scale_of(const at::Tensor& sums, const at::Tensor& norm) const;

  std::vector<std::pair<std::string, ParameterPtr>> parameters_;
  std::shared_ptr<BucketedReduction> bucketed_reduction_;
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
