// One microbatch of a step, from its batch to its metrics. AnyMicrobatch hides the types of the task, so that the code
// that runs microbatches is compiled once for all tasks.
//
// Example
//   MicrobatchPack pack = *binding.next_pack();
//   pack[0]->build_inputs();
//   const LossResult result = pack[0]->forward_loss(*stage, {}, schedule);   // if the model is one stage
//   pack[0]->update_metrics(metrics);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/error/error_place.h"
#include "d9d/loop/checks/first_step_checks.h"
#include "d9d/loop/graphs/graph_key.h"
#include "d9d/loop/step/loss_scales.h"
#include "d9d/loop/task/model_stage.h"
#include "d9d/loop/task/task.h"
#include "d9d/metrics/metric.h"
#include "d9d/modules/module.h"

namespace d9d {

// A pipeline stage, or a whole model as the only stage, without the types of the task.
struct AnyModelStage {
  AnyModelStage() = default;
  virtual ~AnyModelStage();
  AnyModelStage(const AnyModelStage&) = delete;
  AnyModelStage& operator=(const AnyModelStage&) = delete;

  PipelineStageInfo info = {};
  std::shared_ptr<Module> module = {};
  std::optional<LayerDistribution> layers = {};  // of the whole model; none if it declares none
};

template <class Types>
struct BuiltModelStage final : AnyModelStage {
  ModelForward<Types> forward;
  ModelPart<Types> part;
};

class AnyMicrobatch {
 public:
  using Leaves = std::vector<at::Tensor>;
  virtual ~AnyMicrobatch();

  // Returns hash_of() of the batch. Called before build_inputs().
  [[nodiscard]] virtual std::optional<std::uint64_t> hash_of_batch() const = 0;
  // Returns a microbatch with a copy of the batch. Called before build_inputs().
  [[nodiscard]] virtual std::unique_ptr<AnyMicrobatch> copy_of_batch() const = 0;
  // Calls TrainTask::build_forward_inputs, then drops the batch.
  virtual void build_inputs() = 0;

  // The next four are called after build_inputs() and run the microbatch through the stages of a model, one after the
  // other. Stages exchange the leaves of a Transfer; the first stage ignores `received`.
  [[nodiscard]] virtual Leaves transfer(const AnyModelStage& stage, StageBoundary boundary) const = 0;  // meta tensors
  [[nodiscard]] virtual Leaves forward(const AnyModelStage& stage, const Leaves& received) const = 0;
  // Runs forward of the last stage and TrainTask::compute_loss. Detaches the state afterwards, also after an exception.
  // Not of an inference task.
  [[nodiscard]] virtual LossResult forward_loss(const AnyModelStage& stage, const Leaves& received,
                                                const JobSchedule& schedule) = 0;
  // Runs forward of the last stage and TrainTask::take_reference. Not of an inference task.
  virtual void take_reference(const AnyModelStage& stage, const Leaves& received) = 0;
  // Runs forward of the last stage and, if `counts`, InferenceTask::process_outputs. Not of a training task.
  virtual void process(const AnyModelStage& stage, const Leaves& received, bool counts) = 0;
  virtual void drop_inputs() = 0;                                   // called after forward of the rank's last stage
  virtual void update_metrics(const MetricMap& metrics) const = 0;  // TrainTask::update_metrics

  // For CUDA graphs, called after build_inputs(). Returns a microbatch that shares the tensors and has the same values.
  [[nodiscard]] virtual std::unique_ptr<AnyMicrobatch> copy() const = 0;
  // Moves input, shared, state and loss_scales out of `other`, which has the same type.
  virtual void assign(AnyMicrobatch&& other) = 0;
  // The leaves of input, shared, state and loss_scales, in leaf order.
  [[nodiscard]] TensorRefs tensors();
  [[nodiscard]] TensorRefs state_tensors();
  void detach_tensors();  // detaches tensors() from their autograd graphs
  // Requires Microbatch<Types>::kHasKey.
  void write_key(detail::GraphKeyWriter& key) const;

  std::uint64_t number = 0;       // unique in the step over all data-parallel ranks (microbatch_numbers.h)
  std::int64_t num_tokens = 0;    // ForwardInputs::num_tokens
  LossWeights loss_weights = {};  // empty for a task with one loss
  LossScales loss_scales = {};    // empty for a task with one loss

 protected:
  AnyMicrobatch() = default;
  AnyMicrobatch(const AnyMicrobatch&) = default;

 private:
  virtual void add_input_tensors(TensorRefs& tensors) = 0;  // the leaves of input and shared
  virtual void add_state_tensors(TensorRefs& tensors) = 0;
  virtual void write_values(detail::GraphKeyWriter& key) const = 0;
};

using MicrobatchPack = std::vector<std::unique_ptr<AnyMicrobatch>>;  // the microbatches of a step on one rank

// Task: TrainTask<Types> or InferenceTask<Types>.
template <class Types, class Task = TrainTask<Types>>
class Microbatch final : public AnyMicrobatch {
 public:
  // Whether such microbatches have graph keys (graph_key.h): inputs and state consist of tensors and plain values.
  static constexpr bool kHasKey =
      kHasGraphKey<InputOf<Types>> && kHasGraphKey<SharedOf<Types>> && kHasGraphKey<StateOf<Types>>;

  // `task` is borrowed.
  Microbatch(Task& task, BatchOf<Types> batch) : task_(&task), batch_(std::make_shared<Batch>(std::move(batch))) {}

  [[nodiscard]] std::optional<std::uint64_t> hash_of_batch() const override { return hash_of(*batch_); }
  [[nodiscard]] std::unique_ptr<AnyMicrobatch> copy_of_batch() const override {
    Batch copy = *batch_;
    tree_for_each_leaf(copy, [](at::Tensor& leaf) {
      if (leaf.defined()) leaf = leaf.clone();
    });
    return std::make_unique<Microbatch>(*task_, std::move(copy));
  }
  void build_inputs() override {
    const std::shared_ptr<const Batch> batch = std::exchange(batch_, nullptr);
    ForwardInputs<Types> built = task_->build_forward_inputs(*batch);
    inputs_.emplace(std::move(built.input), std::move(built.shared));
    state_.emplace(std::move(built.state));
    detach(*state_);
    num_tokens = built.num_tokens;
    loss_weights = std::move(built.loss_weights);
  }

  [[nodiscard]] Leaves transfer(const AnyModelStage& any, StageBoundary boundary) const override {
    if constexpr (kHasTransfer<Types>) {
      D9D_ASSERT(inputs_.has_value(), "a microbatch without inputs");
      return tree_leaves(built(any).part.transfer(inputs_->first, boundary));
    } else {
      return {};
    }
  }
  [[nodiscard]] Leaves forward(const AnyModelStage& any, const Leaves& received) const override {
    if constexpr (kHasTransfer<Types>) {
      return tree_leaves(with_error_place("in forward", [&] {  //
        return built(any).part.forward(arrived(any, received), inputs_->second);
      }));
    } else {
      return {};
    }
  }
  [[nodiscard]] LossResult forward_loss(const AnyModelStage& any, const Leaves& received,
                                        const JobSchedule& schedule) override {
    if constexpr (kIsTraining) {
      struct DetachOnExit {
        State& state;
        ~DetachOnExit() { detach(state); }
      } detach_on_exit{*state_};
      const OutputOf<Types> output = with_error_place("in forward", [&] { return last_forward(any, received); });
      return with_error_place("in compute_loss", [&] { return task_->compute_loss(output, *state_, schedule); });
    } else {
      D9D_ASSERT(false, "a loss of an inference");
      return {};
    }
  }
  void take_reference(const AnyModelStage& any, const Leaves& received) override {
    D9D_ASSERT(kIsTraining, "a reference of an inference");
    if constexpr (kIsTraining) {
      const OutputOf<Types> output = with_error_place("in forward", [&] { return last_forward(any, received); });
      with_error_place("in take_reference", [&] { task_->take_reference(output, *state_); });
    }
  }
  void process(const AnyModelStage& any, const Leaves& received, bool counts) override {
    D9D_ASSERT(!kIsTraining, "outputs of training are not processed");
    if constexpr (!kIsTraining) {
      const OutputOf<Types> output = with_error_place("in forward", [&] { return last_forward(any, received); });
      if (counts) with_error_place("in process_outputs", [&] { task_->process_outputs(output, *state_); });
    }
  }
  void drop_inputs() override { inputs_.reset(); }
  void update_metrics(const MetricMap& metrics) const override {
    if constexpr (kIsTraining) task_->update_metrics(*state_, metrics);
  }

  [[nodiscard]] std::unique_ptr<AnyMicrobatch> copy() const override { return std::make_unique<Microbatch>(*this); }
  void assign(AnyMicrobatch&& any) override {
    auto& other = static_cast<Microbatch&>(any);
    inputs_ = std::move(other.inputs_);
    state_ = std::move(other.state_);
    loss_scales = std::move(other.loss_scales);
  }

  [[nodiscard]] const InputOf<Types>& input() const { return inputs_->first; }
  [[nodiscard]] StateOf<Types>& state() { return *state_; }

 private:
  static constexpr bool kIsTraining = std::is_base_of_v<TrainTask<Types>, Task>;
  using Batch = BatchOf<Types>;
  using State = StateOf<Types>;
  using Arrived = typename ModelPart<Types>::Arrived;

  [[nodiscard]] static const BuiltModelStage<Types>& built(const AnyModelStage& any) {
    return static_cast<const BuiltModelStage<Types>&>(any);
  }
  static void detach(State& state) {
    if constexpr (TensorTree<State>) {
      tree_for_each_leaf(state, [](at::Tensor& leaf) {
        if (leaf.defined() && leaf.requires_grad()) leaf = leaf.detach();
      });
    }
  }
  [[nodiscard]] OutputOf<Types> last_forward(const AnyModelStage& any, const Leaves& received) const {
    if constexpr (kHasTransfer<Types>) {
      if (!any.info.is_first()) return built(any).part.last_forward(arrived(any, received), inputs_->second);
    }
    return built(any).forward(inputs_->first, inputs_->second);
  }
  [[nodiscard]] Arrived arrived(const AnyModelStage& any, const Leaves& received) const {
    if (any.info.is_first()) return Arrived(std::in_place_index<0>, inputs_->first);
    const auto like = tree_flatten(built(any).part.transfer(inputs_->first, StageBoundary::kIncoming));
    return Arrived(std::in_place_index<1>, tree_unflatten(like.spec, received));
  }

  void add_input_tensors(TensorRefs& tensors) override {
    detail::add_tensor_refs(inputs_->first, tensors);
    detail::add_tensor_refs(inputs_->second, tensors);
  }
  void add_state_tensors(TensorRefs& tensors) override { detail::add_tensor_refs(*state_, tensors); }
  void write_values(detail::GraphKeyWriter& key) const override {
    if constexpr (kHasKey) key.write(inputs_->first), key.write(inputs_->second), key.write(*state_);
  }

  Task* task_;
  std::shared_ptr<const Batch> batch_;  // null after build_inputs()
  std::optional<std::pair<InputOf<Types>, SharedOf<Types>>> inputs_;
  std::optional<State> state_;
};

}  // namespace d9d
