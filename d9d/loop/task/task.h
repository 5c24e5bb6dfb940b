// What a training job computes: how a batch becomes model inputs, and how the model's output becomes a loss.
//
// Example
//   struct LanguageModelTypes {
//     using Batch = TokenBatch;               // one collated microbatch
//     using Input = SequenceInput;            // into the first stage
//     using Transfer = SequenceTransfer;      // from a stage to the next; left out: models in one stage
//     using Shared = DecoderForCausalLM::Shared;  // to every stage
//     using Output = DecoderOutput<LanguageModellingHead>;  // of the last stage
//     using State = LanguageModelState;       // kept for this microbatch until its metrics are updated
//   };
//   class LanguageModelTask : public TrainTask<LanguageModelTypes> { ... };
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "d9d/base/enum_names.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/tree/node.h"
#include "d9d/loop/task/event_bus.h"
#include "d9d/loop/task/job_schedule.h"
#include "d9d/loop/task/task_types.h"
#include "d9d/metrics/metric.h"

namespace d9d {

// The weight of each loss, by name: a scalar >= 0, the number of elements that the loss is a mean over, or the sum of
// their weights.
using LossWeights = std::map<std::string, at::Tensor>;

template <class Types>
struct ForwardInputs {
  InputOf<Types> input;
  SharedOf<Types> shared;
  StateOf<Types> state;
  std::int64_t num_tokens = 0;    // for the log, and for tokens per second
  LossWeights loss_weights = {};  // for a task with several losses; needed before a step's first forward
};

// A weight, given as a tensor or as a number.
class LossWeight : public at::Tensor {
 public:
  LossWeight(at::Tensor weight) : at::Tensor(std::move(weight)) {}  // NOLINT: converts
  LossWeight(double weight) : at::Tensor(number(weight)) {}         // NOLINT: converts

 private:
  [[nodiscard]] static at::Tensor number(double weight);  // fp64, on the CPU
};

struct LossResult {
  at::Tensor loss = {};                                  // scalar
  std::optional<LossWeight> loss_weight = std::nullopt;  // scalar >= 0, none: 1
  // For several losses with weights of their own, set instead of loss and loss_weight: scalars with the names of
  // ForwardInputs::loss_weights.
  std::map<std::string, at::Tensor> losses = {};
};
// The step's loss is sum(loss_i * weight_i) / sum(weight_i) over its microbatches; its gradient is the same mean of the
// losses' gradients. Several losses are each averaged in this way with their own weights, and the step's loss is the
// sum of these means; a loss whose total weight is zero counts as 0. A step in which all total weights are zero changes
// nothing.

// The weights of a reference model, with whose outputs a task compares those of the model that it trains.
enum class ReferenceWeights : std::uint8_t {
  kAuto,             // kWithoutAdapters where that is the model as the job began, else kFrozenCopy
  kWithoutAdapters,  // the model that is trained, its adapters switched off
  kFrozenCopy,       // the model as the job began, beside the one that is trained
};
constexpr auto enum_names(ReferenceWeights) {
  return std::to_array<EnumName<ReferenceWeights>>({{ReferenceWeights::kAuto, "auto"},
                                                    {ReferenceWeights::kWithoutAdapters, "without_adapters"},
                                                    {ReferenceWeights::kFrozenCopy, "frozen_copy"}});
}

// The part of a task that does not depend on its types.
class AnyTask {
 public:
  virtual ~AnyTask();

  // Returns new metrics at each call: called for training, for each evaluation set, and while a job measures stages.
  [[nodiscard]] virtual MetricMap create_metrics();

  // Which reference model the task has (TrainTask::take_reference); the same on all ranks. By default none.
  [[nodiscard]] virtual std::optional<ReferenceWeights> reference() const;

  // Returns the state of this rank's task that a resumed job needs; null: none. Called between steps.
  [[nodiscard]] virtual nlohmann::json state() const;
  // Called before the first step of a resumed job, unless all states are null. of_ranks: what state() returned on each
  // data-parallel rank of the job that saved, in rank order; this job may have another number of such ranks.
  virtual void load_state(const std::vector<nlohmann::json>& of_ranks);

  // Called once, before anything is built and before the model provider's register_events. An override may subscribe to
  // the events that docs/training.md lists.
  virtual void register_events(const DistContext& context, EventBus& events);
  [[nodiscard]] virtual nlohmann::json dump_hparams() const;  // by default an empty object
  virtual void finalize();                                    // called once, after the last step
};

// Returns create_metrics(). Throws StateError if a metric is null, or if a series (series_of()) has the name of another
// one or of a value that the job logs itself: a tracker would merge the two.
[[nodiscard]] MetricMap checked_metrics(AnyTask& task);

// Returns the ranks over which metrics are reduced (reduce_metrics.h): those of the axes "pp", "dp" and "cp". Ranks of
// different "dp" update them with different microbatches. Those of different "cp" have parts of the same sequences:
// what they count by token adds up, what they count by sample is the same (counted_by_sample()). Ranks of different
// "tp" have the same updates, and each such group reduces its own. Only ranks with the last pipeline stage update
// metrics.
[[nodiscard]] DeviceMesh metric_ranks(const DistContext& context);

// What training and inference have in common: how a batch becomes inputs of the model.
template <class Types>
class ForwardTask : public AnyTask {
 public:
  using Batch = BatchOf<Types>;
  using Input = InputOf<Types>;
  using Shared = SharedOf<Types>;
  using Output = OutputOf<Types>;
  using State = StateOf<Types>;

  static_assert(ListsItsTensors<Batch>,
                "Types::Batch, and each struct in it, must list its members in `static constexpr auto fields()` "
                "(d9d/base/record.h), so that tensors in it are found and moved to the device");
  static_assert(ListsItsTensors<TransferOf<Types>>,
                "Types::Transfer, and each struct in it, must list its members in `static constexpr auto fields()` "
                "(d9d/base/record.h), so that tensors in it are found and sent");
  static_assert(ListsItsTensors<State>,
                "Types::State, and each struct in it, must list its members in `static constexpr auto fields()` "
                "(d9d/base/record.h), so that tensors in it are found and detached");

  // Called once a microbatch on every rank, with the batch's tensors on the model's device.
  [[nodiscard]] virtual ForwardInputs<Types> build_forward_inputs(const Batch& batch) = 0;
};

template <class Types>
class TrainTask : public ForwardTask<Types> {
 public:
  using Output = OutputOf<Types>;
  using State = StateOf<Types>;

  // With trainer.pipelining.schedule = auto, the job also calls build_forward_inputs() and the last two functions below
  // while it measures stages on the first microbatch.

  // If reference() names one: called once a microbatch, before compute_loss() of any microbatch of the step or of the
  // evaluation's pack, on ranks with the last stage, without gradients. output: of the reference in evaluation mode,
  // for the inputs of the microbatch. Writes into the state what compute_loss() compares with.
  virtual void take_reference(const Output& /*output*/, State& /*state*/) {}

  // Called once a microbatch, on ranks with the last stage; in evaluations without gradients. May write into the state
  // what update_metrics reads.
  [[nodiscard]] virtual LossResult compute_loss(const Output& output, State& state, const JobSchedule& schedule) = 0;

  // Called once a microbatch, after its backward or in an evaluation, on ranks with the last stage. `metrics`: the
  // result of one create_metrics(), see metric_at().
  virtual void update_metrics(const State& /*state*/, const MetricMap& /*metrics*/) {}
};

}  // namespace d9d
