#include "d9d/loop/run/inference_base.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/base/interrupt.h"
#include "d9d/base/progress/progress_bar.h"
#include "d9d/core/device/freed_memory.h"
#include "d9d/loop/checkpoint/job_checkpoints.h"
#include "d9d/loop/checkpoint/job_state.h"
#include "d9d/loop/checks/rank_consistency.h"
#include "d9d/loop/job/model_builder.h"
#include "d9d/loop/run/run_timeouts.h"
#include "d9d/loop/run/step_profiler.h"
#include "d9d/loop/step/inference_stage.h"
#include "d9d/loop/step/local_stages.h"
#include "d9d/modules/eval_scope.h"
#include "d9d/modules/gradient_reduction.h"

namespace d9d {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kJob = "inference";

// The settings that building a model reads, of which both kinds of jobs have the same records.
TrainerConfig as_trainer(const InferenceConfig& config) {
  TrainerConfig trainer;
  trainer.run.name = kJob;
  trainer.model_stage_factory = config.model_stage_factory;
  trainer.determinism = config.determinism;
  trainer.checkpointing = config.checkpointing;
  trainer.timeout = config.timeout;
  return trainer;
}

StagePlacement placement_on(const DistContext& context, const std::optional<StagePlacement>& given) {
  const std::int64_t num_ranks = context.mesh(MeshDomain::kRegular).axis_size("pp");
  D9D_CHECK(!given || given->num_ranks() == num_ranks, ConfigError,
            "[loop::inference] expected a placement on mesh.pipeline_parallel = ", num_ranks, " ranks, got one on ",
            given ? given->num_ranks() : 0, ". Change one of the two.");
  return given ? *given : StagePlacement::loop(num_ranks, 1);
}

// Streams that do not know their length run to their end.
std::int64_t num_packs(const InferenceConfig& config, const AnyPackStream& stream) {
  if (!config.schedule.total_steps && !stream.total_steps()) return JobSchedule::kUnknownTotal;
  return total_steps_of(config.schedule.total_steps, stream.total_steps());
}

}  // namespace

InferenceBase::InferenceBase(const DistContext& context, const InferenceConfig& config, const Parts& parts,
                             std::unique_ptr<InferenceBinding> binding)
    : context_(context),
      config_(config),
      parts_(parts),
      binding_(std::move(binding)),
      placement_(placement_on(context, parts.placement)),
      schedule_(1) {
  context_.set_timeout(std::chrono::seconds(config_.timeout.init_timeout));
  check_equal_config(context_, as_trainer(config_),
                     {{"task", parts_.task.dump_hparams()}, {"model", hparams_of(parts_.model)}});
  check_profiling(config_.profiling, context_);
  parts_.task.register_events(context_, *events_);
  parts_.model.register_events(context_, *events_);
  events_->trigger(kInferenceConfigStarted, {.dist_context = context_});
  packs_ = binding_->build_packs(context_, config_, *events_);
  schedule_ = JobSchedule(num_packs(config_, packs_->stream()));
  saves_lock_ = prepare_saves(context_, config_.checkpointing);
  load_position();
  packs_->stream().start();
  build_stages();
  executor_ = std::make_unique<PipelineExecutor>(context_, forwards_on(placement_));
  sleep_.add_stages();
  executor_membership_ = offloads_.add(executor_asleep_, {SleepTag::kTensorStates, SleepTag::kComms});
}

InferenceBase::~InferenceBase() = default;

void InferenceBase::build_stages() {
  const TrainerConfig config =
      with_found_source(context_, as_trainer(config_), /*resumed=*/std::nullopt, /*has_reference=*/false);
  if (!config.model_stage_factory.source_checkpoint && context_.is_main_process()) {
    context_.log().warning("the model has random weights: inference.model_stage_factory.source_checkpoint is null");
  }
  stages_ = build_model_stages(context_, config, parts_.model, placement_, [&](const PipelineStageInfo& info) {
    return binding_->initialize_stage(context_, info);
  });
  for (const auto& stage : stages_) modules_.push_back(stage->module);
  update_copies(copies_of(modules_));
  clock_ = share_random_clock(context_, *local_stages(modules_), config);
  ModelStagesReady ready;
  for (const auto& module : modules_) ready.modules.emplace_back(*module);
  events_->trigger(kInferenceModelStagesReady, ready);
}

void InferenceBase::load_position() {
  const auto saved = newest_checkpoint(context_, config_.checkpointing);
  if (!saved) return;
  D9D_CHECK(saved->values().contains("job") && value_of(*saved, "job") == kJob, ConfigError,
            "[loop::inference] expected the position of an inference in inference.checkpointing.save_dir, got ",
            saved->folder().string(), ", which a training job has saved. Name another folder.");
  schedule_.load_state(value_of(*saved, "schedule"));
  packs_->rewind(value_of(*saved, "data"));
  events_->load_states(value_of(*saved, "handlers"));
  const auto states = task_states(*saved);
  if (!states.empty()) parts_.task.load_state(states);
  if (context_.is_main_process()) {
    if (states.empty()) {
      context_.log().warning("InferenceTask::state() of the job that saved returned null: what the task computed ",
                             "from the first ", saved->step(), " packs is not part of its result");
    }
    context_.log().info("continues after pack ", saved->step(), " from ", saved->folder().string());
  }
  events_->trigger(kInferenceCheckpointLoaded, {.step = saved->step(), .folder = saved->folder()});
}

void InferenceBase::sleep(const SleepTags& tags) {
  sleep_.sleep(tags, [](const SleepTags&, const std::function<void()>& body) { body(); });
}

void InferenceBase::wake(const SleepTags& tags) {
  sleep_.wake(tags, [](const SleepTags&, const std::function<void()>& body) { body(); });
}

TrainingOutcome InferenceBase::infer() {
  offloads_.check_awake("infer");
  const OffloadList::InUse in_use(offloads_, "packs run");
  const at::NoGradGuard no_grad;
  const EvalScope eval(modules_);
  std::vector<std::shared_ptr<GradientReduction>> reductions;
  for (const auto& module : modules_) {
    for (const auto& reduction : gradient_reductions(*module)) reductions.push_back(reduction);
  }
  EvenPacks packs(context_, *packs_, "the data");
  packs.skip_to(schedule_.current_step());
  announce();
  events_->trigger(kInferenceReady, {});
  for (const auto& reduction : reductions) reduction->begin_evaluation();
  StopDecision stop(context_, schedule_, stop_, "pack");
  run_packs(packs, stop);
  for (const auto& reduction : reductions) {
    reduction->end_evaluation();
    reduction->close();
  }
  parts_.task.finalize();
  events_->trigger(kInferenceFinished, {});
  return stop.outcome(context_.log(), /*is_done=*/!stop.stops());
}

void InferenceBase::announce() const {
  const double count = num_parameters(*local_stages(modules_), context_).all;
  if (!context_.is_main_process()) return;
  const std::string packs = schedule_.knows_total() ? cat(schedule_.total_steps(), " packs") : "all packs of the data";
  context_.log().info("inference: ", short_number(count), " parameters, ", packs, " on ", context_.world_size(), " x ",
                      context_.device().str());
}

// Runs packs until the end of the data or of the schedule, or until a rank asks to stop.
void InferenceBase::run_packs(EvenPacks& packs, StopDecision& stop) {
  const InterruptScope interrupt;
  ProgressBar bar(
      {.label = "infer",
       .total = schedule_.knows_total() ? schedule_.total_steps() : std::max<std::int64_t>(1, schedule_.current_step()),
       .initial = schedule_.current_step()});
  StepProfiler profiler(config_.profiling, context_);
  RunTimeouts timeouts(context_, config_.timeout);
  timeouts.begin();
  const InferenceStep step{.schedule = schedule_, .stop = stop_};
  while (!schedule_.is_done()) {
    const std::int64_t index = schedule_.current_step();
    profiler.begin_step(index);
    const Clock::time_point start = Clock::now();
    events_->trigger(kInferenceStepPre, step);
    EvenPack next = packs.next({.signal = interrupt.signal(), .asks_to_stop = stop_.why().has_value()});
    stop.take(next.stops, next.signal);
    if (next.stops || next.is_end) break;
    std::int64_t num_tokens = 0;
    for (std::size_t i = 0; i < next.pack.num_counted; ++i) num_tokens += next.pack.microbatches[i]->num_tokens;
    events_->run_between(kInferenceForwardPre, kInferenceForwardPost, step,
                         [&] { run_forwards<InferenceStage>(*executor_, *clock_, stages_, next.pack); });
    events_->trigger(kInferenceStepPost, step);
    schedule_.advance();
    if (schedule_.should_do_action(config_.gc.period_steps, {.after_advance = true})) {
      return_freed_memory(context_.device());
    }
    save_if_due(timeouts, /*is_last=*/false);
    timeouts.end_step_of(profiler, index);
    if (schedule_.knows_total() && context_.is_main_process()) {
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      bar.update(schedule_.current_step(), {short_number(static_cast<double>(num_tokens) / seconds) + " tok/s"});
    }
    timeouts.end_step();
  }
  save_if_due(timeouts, /*is_last=*/true);
  timeouts.end();
  profiler.finish();
  bar.finish();
}

// Collective. Position and states, never weights.
void InferenceBase::save() const {
  CheckpointState state;
  state.values = {{"job", kJob},
                  {"schedule", schedule_.state()},
                  {"data", packs_->stream().state()},
                  {"handlers", events_->states()},
                  {"task_ranks", task_ranks(context_, placement_)}};
  state.rank_values = [task = parts_.task.state()] { return nlohmann::json{{"task", task}}; };
  const CheckpointDirectory directory(config_.checkpointing.save_dir, context_.mesh(MeshDomain::kBatch));
  directory.save(schedule_.current_step(), state, {.num_to_keep = config_.checkpointing.num_to_keep});
}

// Collective.
void InferenceBase::save_if_due(const RunTimeouts& timeouts, bool is_last) {
  if (!saves_checkpoints(config_.checkpointing)) return;
  const bool is_due = schedule_.should_do_action(config_.checkpointing.period_steps, {.after_advance = true});
  if (!is_due && !is_last) return;
  const std::int64_t step = schedule_.current_step();
  if (saved_step_ == step || step == 0) return;
  timeouts.longer_than_a_step([&] { save(); });
  saved_step_ = step;
  const auto folder = CheckpointDirectory::folder_of(config_.checkpointing.save_dir, step);
  events_->trigger(kInferenceCheckpointSaved, {.step = step, .folder = folder});
}

}  // namespace d9d
