// The loss and the gradients of one step: weighted accumulation over microbatches and ranks, one division, norm,
// clipping.
//
//   backward gets   w_i * L_i                     for each microbatch i of each rank
//   the step's loss   sum(w_i * L_i) / W            with W = sum(w_i)
//   the gradient      sum(w_i * dL_i) / W           then scaled by min(1, max_norm / (norm + 1e-6))
//
// Example (a loop of one's own; the trainer calls begin_pass() and end_pass() around each forward and each backward of
// a stage instead of begin_microbatch() and end_microbatch())
//   GradientManager gradients(context, module, {}, {.max_norm = 1.0});
//   for (i ...) {
//     gradients.begin_microbatch(is_last);
//     ...                                              // forward
//     gradients.add_loss_with_weight(loss, weight);
//     (loss * weight).backward();
//     gradients.end_microbatch();
//   }
//   const StepTotals step = gradients.apply(optimizer, learning_rate);
//   gradients.reset();
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/device/host_copy.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/internals/grad_norm/distributed_grad_norm.h"
#include "d9d/internals/grad_norm/part_norms.h"
#include "d9d/internals/grad_sync/bucketed_reduction.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/step/spike_limits.h"
#include "d9d/loop/step/tied_parameters.h"
#include "d9d/modules/gradient_reduction.h"
#include "d9d/optim/optimizer.h"

namespace d9d {

// What one rank contributes to the totals of a step.
struct RankReport {
  std::optional<std::int64_t> step = {};  // index of the step in the job, for errors
  std::int64_t num_tokens = 0;
  // Summed over all ranks in the all-reduce that sums the losses. All ranks pass the same count of numbers
  // (rank_votes.h).
  std::vector<double> numbers = {};
  StepLimits limits = {};        // above which the step is a spike; the same on all ranks
  bool measures_layers = false;  // whether StepTotals::layer_norms are computed; the same on all ranks
};

// Totals of a step, the same on all ranks.
struct StepTotals {
  double loss = 0.0;
  double norm = 0.0;  // L2, over all parameters, before clipping
  double total_weight = 0.0;
  std::int64_t num_tokens = 0;
  std::vector<double> numbers = {};  // the sums of RankReport::numbers
  // "grad_norm/<layer>", like `norm`, of all layers that are trained, then "param_norm/<layer>", before the optimiser's
  // step, of all (layer_of()). Empty unless RankReport::measures_layers.
  std::vector<std::pair<std::string, double>> layer_norms = {};
  bool is_usable = true;  // false: total weight 0, not finite, or a spike
  bool is_finite = true;
  bool is_spike = false;
  bool is_lost = false;     // a parameter is not finite, so no later step can be finite
  double grad_scale = 1.0;  // factor on the summed gradients: divides by the total weight and clips
  std::string reason;       // why the step is not usable; empty if it is
};

// Wraps the optimiser's step: must call `step` and may run code before and after it.
using AroundStep = std::function<void(const std::function<void()>& step)>;

// Whether gradients keep their addresses from step to step.
enum class GradientMemory {
  kOfStep,  // may be allocated anew in each step
  kKept,    // at the same addresses in all steps, so that captured graphs can write them
};

class GradientManager {
 public:
  // Collective over the ranks of a pipeline. The module has storage and layouts. Gradients are reduced in
  // config.grad_dtype, unless a reduction's own configuration names another dtype. stages: the pipeline stages of this
  // rank, of which `module` consists; empty: `module` is the only stage.
  GradientManager(const DistContext& context, Module& module, const GradientManagerConfig& config,
                  const GradientClippingConfig& clipping, GradientMemory memory = GradientMemory::kOfStep,
                  const std::vector<std::shared_ptr<Module>>& stages = {});

  // Names of the parameters that several stages of the pipeline share (tied_parameters.h).
  [[nodiscard]] const std::vector<std::string>& tied_names() const { return tied_.names(); }

  // Call the functions of the same names on all GradientReductions of a stage. stage: its index among the stages of
  // this rank.
  void begin_pass(std::size_t stage, const StagePass& pass);
  void end_pass(std::size_t stage);
  // Begin and end one pass of all stages that is a whole microbatch (GradientReduction::begin_microbatch).
  void begin_microbatch(bool is_last);
  void end_microbatch();
  // Adds a microbatch's loss to the step's. Called between begin_microbatch() and end_microbatch(), or between
  // begin_pass() and end_pass() of its forward. loss, weight: scalars; this function detaches them.
  void add_loss_with_weight(const at::Tensor& loss, const at::Tensor& weight);

  // For each parameter with a bucket, whether its gradient has a value in this step: the next backward accumulates into
  // such a gradient and overwrites the others.
  [[nodiscard]] std::vector<bool> received(std::size_t stage = 0) const { return stages_[stage].bucketed->received(); }
  // Sets the result of received(), since replayed backwards do not change it. Called after the replayed backwards of a
  // stage and before the pass that reduces their gradients.
  void set_received(std::size_t stage, const std::vector<bool>& received) {
    stages_[stage].bucketed->set_received(received);
  }

  // Collective. Called after the last microbatch. Sums gradients, losses and reports over ranks and steps the
  // optimiser. If the step is not usable, parameters and optimiser stay as they were.
  //
  // An optimiser that scales gradients (ScalesGradients) steps before the host knows the loss: it divides and clips the
  // gradients as it reads them, and the host waits only for the loss and the norm. For any other optimiser, and
  // whenever `around` is set, the host waits first, and the optimiser gets gradients that are already divided and
  // clipped, in at least float32. Both paths round alike: the parameters become the same bit for bit, so some ranks may
  // pass an `around` and others none.
  //
  // Throws CommunicationError, and reports neither loss nor norm, if a communication failed in the step. Throws
  // StateError on all ranks if the ranks have not reduced the same sharded modules, or if the loss or norm is not
  // finite or a spike and the policy is to stop.
  StepTotals apply(Optimizer& optimizer, double learning_rate, const RankReport& report = {},
                   const AroundStep& around = {});
  // Collective. Like apply(), but leaves the optimiser's step to the caller: the gradients are divided and clipped
  // afterwards. If StepTotals::is_usable is false they are only summed, and must not be used.
  [[nodiscard]] StepTotals reduce_and_clip(const RankReport& report);

  // Collective. Called between steps, around forwards without gradients in which no parameter is written: updates
  // copies of parameters once, and calls the functions of the same names on all GradientReductions.
  void begin_evaluation();
  void end_evaluation();

  // Clears gradients and loss.
  void reset();
  // Local. Does the work of reset() after an exception in a step, when gradients are incomplete.
  void abandon();
  // Collective. Called after the last step, and before the job goes to sleep: calls GradientReduction::close().
  void close();

 private:
  // Results of a step that the device computes; the same on all ranks.
  struct Pending {
    // fp64, 0-dim: the factor that divides the gradients in .grad() by the total weight and clips them. NaN if the step
    // is not usable.
    at::Tensor grad_scale;
    // fp64: weighted loss, weight, tokens, disagreement, norm, grad_scale, RankReport::numbers; if layers are measured,
    // the norms of gradients and of parameters of each
    HostCopy totals;
    std::int64_t num_numbers = 0;
  };

  // Does not wait for the device. Gradients are summed but not divided.
  [[nodiscard]] Pending sum_step(const RankReport& report);
  // Waits for the copy of the totals, but not for work that was enqueued after sum_step().
  [[nodiscard]] StepTotals read_step(const Pending& pending, const StepLimits& limits) const;
  void refuse_spike(const StepTotals& step, const RankReport& report) const;
  void refuse_non_finite(const StepTotals& step, const RankReport& report) const;
  // The microbatch, parameter or gradient that made a step non-finite; empty if unknown. cause_of_non_finite() is
  // collective and returns the same on all ranks.
  struct Cause {
    std::string text = "";
    bool is_parameter = false;
  };
  [[nodiscard]] Cause cause_of_non_finite(double loss) const;
  // Scales the gradients of all parameters in at least float32: narrower gradients are replaced by float32 ones.
  void scale_gradients(const StepTotals& step) const;
  [[nodiscard]] at::Tensor sum_over_ranks(const RankReport& report) const;
  // Returns [2 * number of layers]: the norms of gradients, which are not divided, then those of parameters. The first
  // call is collective over the pipeline and waits for it.
  [[nodiscard]] at::Tensor norms_by_layer();
  [[nodiscard]] std::vector<std::pair<std::string, double>> named_layer_norms(const double* norms, double weight) const;
  [[nodiscard]] at::Tensor grad_scale_of(const at::Tensor& sums, const at::Tensor& norm,
                                         const StepLimits& limits) const;

  struct StageReductions {
    std::shared_ptr<BucketedReduction> bucketed;
    std::vector<std::shared_ptr<GradientReduction>> all;  // the stage's own, then bucketed
  };

  std::vector<std::pair<std::string, ParameterPtr>> parameters_;
  std::vector<StageReductions> stages_;
  std::vector<std::shared_ptr<GradientReduction>> reductions_;  // the reductions of all stages
  TiedParameters tied_;
  std::vector<GradNormGroup> norm_groups_;
  std::optional<PartNorms> layer_norms_;  // none before the first step that measures them
  DeviceMesh pipeline_;                   // the ranks of this rank's pipeline
  DeviceMesh ranks_;                      // all ranks
  bool counts_;  // whether this rank adds its losses: of tensor-parallel ranks only the first does
  at::Device device_;
  SideStream copies_;
  std::shared_ptr<const World> world_;
  GradientClippingConfig clipping_;
  at::Tensor weighted_loss_;  // undefined: no microbatch yet
  at::Tensor total_weight_;
  std::vector<std::pair<at::Tensor, at::Tensor>> losses_;  // weighted loss and weight of each microbatch of the step
};

}  // namespace d9d
