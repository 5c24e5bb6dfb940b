#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/rounding.h"
#include "d9d/core/autograd/deferred_gradients.h"
#include "d9d/loop/config/unsupported.h"
#include "d9d/loop/job/model_builder.h"
#include "d9d/loop/measure/memory_plan.h"
#include "d9d/loop/measure/optimizer_sizes.h"
#include "d9d/loop/step/local_stages.h"
#include "d9d/loop/step/task_binding.h"
#include "d9d/loop/step/training_stage.h"
#include "d9d/parallelism/exchange/exchange_memory.h"
#include "d9d/pipelining/executor/message_layout.h"
#include "d9d/pipelining/executor/peer_link.h"
#include "d9d/pipelining/executor/pipeline_executor.h"
#include "d9d/pipelining/executor/stage_probe.h"
#include "d9d/pipelining/program/live_microbatches.h"

namespace d9d {
namespace {

std::int64_t num_stored(const Module& module) {
  std::int64_t count = 0;
  for (const auto& [name, parameter] : module.named_parameters()) count += parameter->stored().numel();
  return count;
}

bool splits_backward(const PipelineProgram& program) {
  return std::ranges::any_of(program.ranks, [](const RankProgram& rank) {
    return std::ranges::any_of(rank, [](const Action& action) {
      return std::ranges::any_of(compute_parts(action),
                                 [](const ComputeAction& part) { return holds<BackwardInputAction>(part); });
    });
  });
}

// Finds the time in the rank's program at which the activations and deferred tensors of all stages together have the
// most bytes. Sets num_live and num_waiting of each stage to their values at that time.
void count_live(const PipelineProgram& program, RankMemory& memory) {
  RankMemory now = memory;
  std::int64_t most = -1;
  for (const std::vector<WaitingMicrobatches>& waiting : waiting_microbatches(program, memory.pipeline_rank)) {
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      now.stages[i].num_live = waiting[i].for_backward;
      now.stages[i].num_waiting = waiting[i].for_weights;
    }
    if (now.activations() <= most) continue;
    most = now.activations();
    memory.stages = now.stages;
  }
}

// A stage that drops its losses, and whose transfers take almost no bytes on the meta device, since each of their
// tensors is one expanded element.
class PlannedStage final : public TrainingStage {
 public:
  using TrainingStage::TrainingStage;
  [[nodiscard]] std::vector<at::Tensor> transfer(MicrobatchIndex microbatch, StageBoundary boundary) const override {
    std::vector<at::Tensor> leaves = TrainingStage::transfer(microbatch, boundary);
    for (at::Tensor& leaf : leaves) leaf = at::empty({}, leaf.options()).expand(leaf.sizes());
    return leaves;
  }

 private:
  void add_loss(const AnyMicrobatch& /*microbatch*/, WeightedLoss& loss) override { loss = {}; }
};

// The bytes of a module's blocks for exchanges that a meter counts: those of CUDA are not tensors of its allocator.
std::int64_t metered_exchanges(Module& module, const DistContext& context) {
  return context.device().is_cuda() ? 0 : exchange_bytes(module);
}

// Measures the memory of one stage on a few microbatches, without a schedule and without other stages.
class StageMeasurement {
 public:
  StageMeasurement(const DistContext& context, const MemoryMeter& meter, const PipelineStageInfo& info,
                   PipelineStage& stage, Module& module)
      : context_(context), meter_(meter), info_(info), stage_(stage), module_(module) {}

  // Runs two microbatches: the first also allocates the tensors that stay for the whole step.
  void measure(StageMemory& memory) const {
    const std::int64_t base = live_bytes();
    StageProbe first = forward(0);
    const std::int64_t after_first = live_bytes() - base;
    first.backward(gradients());
    const std::int64_t before = live_bytes();
    StageProbe second = forward(1);
    memory.activations = live_bytes() - before;
    second.backward(gradients(), /*is_last=*/true);
    memory.gathered = after_first - memory.activations;
    memory.gradients = std::max(before, live_bytes()) - base - memory.gathered;
  }

  // Runs three microbatches. The second and the third wait for W at the same time and share full gradients, so the
  // third adds only what one microbatch keeps from I to W.
  void measure_split(StageMemory& memory) const {
    DeferredGradients deferred(stage_.weights());
    const std::int64_t base = live_bytes();
    StageProbe first = forward(0);
    const std::int64_t after_first = live_bytes() - base;
    first.backward_input(gradients(), deferred);
    first.backward_weight();
    const std::int64_t before = live_bytes();
    StageProbe second = forward(1);
    memory.activations = live_bytes() - before;
    StageProbe third = forward(2);
    second.backward_input(gradients(), deferred);
    const std::int64_t one_waits = live_bytes();
    third.backward_input(gradients(), deferred);
    memory.deferred = live_bytes() - one_waits + memory.activations;
    const std::int64_t full_gradients = one_waits - before - memory.activations - memory.deferred;
    second.backward_weight();
    third.backward_weight(/*is_last=*/true);
    const std::int64_t gathered = after_first - memory.activations;
    memory.gathered = gathered + full_gradients;
    memory.gradients = std::max(before, live_bytes()) - base - gathered;
  }

 private:
  // Without the stage's blocks for exchanges, which its first forward opens.
  [[nodiscard]] std::int64_t live_bytes() const { return meter_.live_bytes() - metered_exchanges(module_, context_); }
  // Returns tensors on the device with the shapes and dtypes of a transfer over `boundary`.
  [[nodiscard]] std::vector<at::Tensor> transferred(StageBoundary boundary) const {
    std::vector<at::Tensor> leaves = stage_.transfer({0}, boundary);
    for (at::Tensor& leaf : leaves) leaf = at::zeros(leaf.sizes(), leaf.options().device(context_.device()));
    return leaves;
  }
  [[nodiscard]] std::vector<at::Tensor> gradients() const {
    return info_.is_last() ? std::vector<at::Tensor>() : differentiable(transferred(StageBoundary::kOutgoing));
  }
  [[nodiscard]] StageProbe forward(std::int64_t microbatch) const {
    StageProbe probe(stage_, {microbatch}, info_.is_last());
    std::vector<at::Tensor> arrived;
    if (!info_.is_first()) arrived = transferred(StageBoundary::kIncoming);
    probe.forward(std::move(arrived), /*backward_follows=*/info_.num_stages == 1);
    return probe;
  }

  const DistContext& context_;
  const MemoryMeter& meter_;
  const PipelineStageInfo info_;
  PipelineStage& stage_;
  Module& module_;
};

// Builds the stages of a rank as the trainer does. Measures each of them by itself, then all of them in the program.
class MeasuredRank {
 public:
  MeasuredRank(const DistContext& context, const MemoryRequest& request, ModelProvider<LanguageModelTypes>& model,
               const MemoryMeter& meter)
      : context_(context),
        request_(request),
        meter_(meter),
        executor_(context, schedule_of(request.trainer.pipelining.schedule), {.method = ExchangeMethod::kCommunicator}),
        program_(build_compute_program(schedule_of(request.trainer.pipelining.schedule),
                                       executor_.placement().num_ranks(), request.num_microbatches)),
        task_(context) {
    build(model);
  }

  [[nodiscard]] RankMemory measure() {
    const std::int64_t built = meter_.live_bytes();
    const bool splits = splits_backward(program_) && executor_.placement().num_stages() > 1;
    set_num_microbatches(splits ? 3 : 2);
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const StageMeasurement stage(context_, meter_, model_stages_[i]->info, stages_[i], *modules_[i]);
      splits ? stage.measure_split(memory_.stages[i]) : stage.measure(memory_.stages[i]);
    }
    count_live(program_, memory_);
    set_num_microbatches(request_.num_microbatches);
    gradients_->reset();
    meter_.reset_peak();
    std::vector<PipelineStage*> stages;
    for (PlannedStage& stage : stages_) stages.push_back(&stage);
    executor_.run(stages, request_.num_microbatches);
    const std::int64_t parameters = memory_.sum_of(&StageMemory::parameters);
    // Bytes beside those of the built stages.
    const std::int64_t in_step = meter_.peak_bytes() - built - metered_exchanges(*module_, context_);
    memory_.working = std::max<std::int64_t>(0, in_step - memory_.sum_of(&StageMemory::gathered) -
                                                    memory_.sum_of(&StageMemory::gradients) - memory_.activations());
    memory_.messages = inbox_bytes();
    memory_.exchanges = exchange_bytes(*module_);
    memory_.total =
        parameters + memory_.sum_of(&StageMemory::optimizer) + memory_.messages + memory_.exchanges + in_step;
    return memory_;
  }

 private:
  void build(ModelProvider<LanguageModelTypes>& model) {
    const StagePlacement& placement = executor_.placement();
    memory_.pipeline_rank = context_.mesh(MeshDomain::kRegular).axis_coordinate("pp");
    OptimizerSizes optimizer(request_.optimizer);
    const bool has_averages = request_.trainer.ema.has_value();
    TrainerConfig config = request_.trainer;
    config.model_stage_factory.source_checkpoint.reset();
    config.model_stage_factory.source_adapters.reset();
    for (const StageIndex index : executor_.stages()) {
      const PipelineStageInfo info{.num_stages = placement.num_stages(), .current_stage = index.value};
      const std::int64_t before = meter_.live_bytes();
      model_stages_.push_back(initialized_stage(model, context_, info));
      modules_.push_back(model_stages_.back()->module);
      Module& module = *modules_.back();
      (void)build_model_stage(context_, config, model, info, modules_.back());
      memory_.stages.push_back(
          {.stage = index,
           .num_parameters = num_stored(module),
           .parameters = meter_.live_bytes() - before,
           .optimizer = optimizer.bytes_of(module) + (has_averages ? bytes_of_averages(module) : 0)});
    }
    module_ = local_stages(modules_);
    clock_ = share_random_clock(context_, *module_, request_.trainer);
    gradients_.emplace(context_, *module_, request_.trainer.gradient_manager, request_.trainer.gradient_clipping,
                       GradientMemory::kOfStep, modules_);
    step_.gradients = &*gradients_;
    const std::int64_t length = round_up(request_.sequence_length, context_.mesh_parameters().position_divisor());
    const at::Tensor ids =
        at::zeros({request_.num_sequences, length}, at::TensorOptions(context_.device()).dtype(at::kLong));
    microbatch_ = std::make_unique<Microbatch<LanguageModelTypes>>(
        task_, TokenBatch{.input_ids = ids, .labels = ids, .position_ids = ids});
    microbatch_->build_inputs();
    const StageJob job{.schedule = schedule_, .clock = *clock_, .metrics = metrics_, .loss_means = loss_means_};
    for (std::size_t i = 0; i < model_stages_.size(); ++i) {
      // Not the last of the rank, so that microbatches keep their inputs: the first ones run several times.
      stages_.emplace_back(job, *model_stages_[i], TrainingStagePlace{.local = i, .is_last_of_rank = false}, step_);
    }
  }

  void set_num_microbatches(std::int64_t count) {
    step_.pack.clear();
    for (std::int64_t i = 0; i < count; ++i) step_.pack.push_back(microbatch_->copy());
  }

  // Returns the bytes of the receive buffers. There is one for each other rank that has a neighbouring stage, and none
  // if a communicator sends the messages.
  [[nodiscard]] std::int64_t inbox_bytes() const {
    if (request_.trainer.pipelining.messages == ExchangeMethod::kCommunicator) return 0;
    const StagePlacement& placement = executor_.placement();
    std::map<std::int64_t, std::int64_t> largest;  // by pipeline rank
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      for (const StageBoundary boundary : {StageBoundary::kIncoming, StageBoundary::kOutgoing}) {
        const std::int64_t own = memory_.stages[i].stage.value;
        const StageIndex other{boundary == StageBoundary::kIncoming ? own - 1 : own + 1};
        if (other.value < 0 || other.value == placement.num_stages()) continue;
        std::int64_t& bytes = largest[placement.rank_of(other)];
        bytes = std::max(bytes, message_bytes(stages_[i].transfer({0}, boundary)));
      }
    }
    largest.erase(memory_.pipeline_rank);
    std::int64_t bytes = 0;
    for (const auto& [rank, message] : largest)
      bytes += PeerLink::inbox_bytes(StageLinksConfig{}.num_inbox_slots, message);
    return bytes;
  }

  const DistContext& context_;
  const MemoryRequest& request_;
  const MemoryMeter& meter_;
  PipelineExecutor executor_;
  PipelineProgram program_;
  LanguageModelTask task_;
  RankMemory memory_;
  std::vector<std::shared_ptr<Module>> modules_;
  std::shared_ptr<Module> module_;
  std::optional<GradientManager> gradients_;
  const JobSchedule schedule_ = JobSchedule(/*total_steps=*/1);
  const MetricMap metrics_ = task_.create_metrics();
  const MetricMap loss_means_;
  std::vector<std::shared_ptr<AnyModelStage>> model_stages_;
  RandomClockPtr clock_;
  std::unique_ptr<AnyMicrobatch> microbatch_;  // all microbatches are copies of it
  StepMicrobatches step_;
  std::vector<PlannedStage> stages_;
};

}  // namespace

RankMemory measure_memory(const DistContext& context, const MemoryRequest& request,
                          ModelProvider<LanguageModelTypes>& model, const MemoryMeter& meter) {
  refuse_unsupported(request.trainer);
  return MeasuredRank(context, request, model, meter).measure();
}

}  // namespace d9d
