#include "d9d/loop/run/trainer_base.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checkpoint/export_model.h"
#include "d9d/loop/checks/equal_ranks.h"
#include "d9d/loop/checks/first_step_checks.h"
#include "d9d/loop/checks/own_schedule.h"
#include "d9d/loop/config/unsupported.h"
#include "d9d/loop/graphs/cuda_graph_rules.h"
#include "d9d/loop/graphs/warm_up.h"
#include "d9d/loop/job/model_builder.h"
#include "d9d/loop/measure/auto_schedule.h"
#include "d9d/loop/step/local_stages.h"
#include "d9d/loop/step/microbatch_runner.h"
#include "d9d/loop/task/train_events.h"
#include "d9d/modules/detect_non_finite.h"

namespace d9d {
namespace {

// Two series of one name would be one to a tracker.
void check_metrics(const MetricMap& metrics) {
  constexpr std::array kLogged = {"loss", "grad_norm", "lr", "num_tokens", "step_seconds"};
  for (const auto& [name, metric] : metrics) {
    D9D_CHECK(metric != nullptr, StateError,
              "[loop::trainer] expected TrainTask::create_metrics to return metrics, got null as '", name, "'.");
    const bool is_logged = std::ranges::find(kLogged, name) != kLogged.end() || name.starts_with("loss/");
    D9D_CHECK(!is_logged, StateError,
              "[loop::trainer] expected names of metrics that the job does not log itself, got '", name,
              "'. Rename it in TrainTask::create_metrics, to metric/", name, " for instance.");
  }
}

// A stream that forgets its position would train on the data from the start again.
void continue_at(AnyPackStream& stream, const nlohmann::json& position) {
  const nlohmann::json start = stream.state();
  with_error_place("in PackStream::load_state", [&] { stream.load_state(position); });
  const bool has_moved = stream.state() != start || position == start;
  D9D_CHECK(has_moved, StateError, "[loop::data] expected a stream that continues at ", position.dump(),
            " after PackStream::load_state(), got one that stays at ", start.dump(), ". Set the position there.");
}

}  // namespace

TrainerBase::TrainerBase(const DistContext& context, const TrainerConfig& config, const Parts& parts,
                         std::unique_ptr<TaskBinding> binding)
    : parts_(parts), binding_(std::move(binding)), job_(build_job(context, config)) {
  if (saved_) {
    load(*saved_, job_);
    warn_of_other_settings(context, *saved_, hparams(), job_.written);
    if (const auto states = task_states(*saved_); !states.empty()) parts_.task.load_state(states);
  }
  saved_.reset();
  job_.events->trigger(kTrainOptimizerReady, {.optimizer = job_.optimizer});
  job_.events->trigger(kTrainLRSchedulerReady, {.lr_scheduler = job_.lr_scheduler});
}

TrainerBase::~TrainerBase() = default;

TrainingOutcome TrainerBase::train() {
  job_.hparams = hparams();
  MicrobatchRunner runner(job_, parts_.task, *stream_, *binding_);
  const TrainingOutcome outcome = run_training(job_, runner);
  graph_counts_ = runner.graph_counts();
  if (job_.config.cuda_graph && job_.context.is_main_process()) log_graph_counts();
  parts_.task.finalize();
  job_.events->trigger(kTrainFinished, {});
  return outcome;
}

nlohmann::json TrainerBase::hparams() const {
  return {{"task", parts_.task.dump_hparams()}, {"model", parts_.model.dump_hparams()}};
}

void TrainerBase::export_to(const std::filesystem::path& directory) {
  export_model(job_, parts_.model.prepare_export(*job_.module), directory);
}

TrainingJob TrainerBase::build_job(const DistContext& context, const TrainerConfig& given) {
  refuse_unsupported(given);
  refuse_two_schedules(parts_.pipeline_schedule, given.pipelining.schedule);
  context.set_timeout(std::chrono::seconds(given.timeout.init_timeout));
  nlohmann::json all = hparams();
  all["optimizer"] = parts_.optimizer.dump_hparams();
  all["lr_scheduler"] = parts_.lr_scheduler.dump_hparams();
  check_equal_config(context, given, all);
  check_cuda_graph(context, given);
  check_cuda_graph(given, binding_->has_key());
  warm_up_ = start_warm_up(context.device());

  auto events = std::make_unique<EventBus>();
  parts_.task.register_events(context, *events);
  parts_.model.register_events(context, *events);
  events->trigger(kTrainConfigStarted, {.dist_context = context});

  stream_ = &binding_->build_pack_stream(context, given, *events);
  check_data_order(context, stream_->state());
  JobSchedule schedule(total_steps_of(given.schedule.total_steps, stream_->total_steps()));
  saves_lock_ = prepare_saves(context, given.checkpointing);
  saved_ = newest_checkpoint(context, given.checkpointing);
  const TrainerConfig found = with_found_source(context, given, saved_);
  if (saved_) {
    schedule.load_state(value_of(*saved_, "schedule"));
    continue_at(*stream_, value_of(*saved_, "data"));
  }
  check_names_of_saves(context, found.checkpointing, schedule);
  stream_->start();  // so that the first step's data is ready when the model is

  const TrainerConfig config =
      with_chosen_schedule({context, found, *binding_, parts_.task, parts_.model, schedule}, saved_);
  const std::int64_t num_pipeline_ranks = context.mesh(MeshDomain::kRegular).axis_size("pp");
  const PipelineSchedule pipeline = parts_.pipeline_schedule ? as_trained(*parts_.pipeline_schedule, num_pipeline_ranks)
                                                             : schedule_of(config.pipelining.schedule);
  const StagePlacement placement = placement_of(pipeline, num_pipeline_ranks);
  check_equal_schedule(context, pipeline.name, placement);
  const auto model_stages = build_stages(context, config, placement);
  std::vector<std::shared_ptr<Module>> stages;
  for (const auto& stage : model_stages) stages.push_back(stage->module);
  const std::shared_ptr<Module> module = local_stages(stages);
  check_cuda_graph(config, *module);
  if (saved_) {
    load_model(*saved_, context, *module, config);
    update_copies(copies_of(stages));
  }
  ModelStagesReady ready;
  for (const auto& stage : stages) ready.modules.emplace_back(*stage);
  events->trigger(kTrainModelStagesReady, ready);
  check_equal_model(context, *module);  // once more, as the handlers have left it

  RandomClockPtr clock = share_random_clock(context, *module, config);
  MetricMap metrics = parts_.task.create_metrics();
  check_metrics(metrics);
  FreezeGuard freeze_guard(module->named_parameters());
  Optimizer optimizer = parts_.optimizer.build_optimizer(context, trainable_parameters(*module));
  LearningRateScheduler lr_scheduler = parts_.lr_scheduler.build_scheduler(context, schedule.total_steps());
  if (saves_checkpoints(config.checkpointing)) check_optimizer_state(context, *module, optimizer);
  if (context.is_main_process()) warn_of_float16(context, *module);
  check_equal_rates(context, optimizer.learning_rate(), lr_scheduler.factor());
  return {.context = context,
          .config = config,
          .events = std::move(events),
          .schedule = schedule,
          .module = module,
          .model_stages = model_stages,
          .stages = stages,
          .pipeline_schedule = pipeline,
          .has_own_schedule = parts_.pipeline_schedule.has_value(),
          .placement = placement,
          .clock = std::move(clock),
          .metrics = std::move(metrics),
          .freeze_guard = std::move(freeze_guard),
          .optimizer = std::move(optimizer),
          .lr_scheduler = std::move(lr_scheduler),
          .auto_schedule = auto_schedule_of(given),
          .written = written_settings(given, parts_.optimizer, parts_.lr_scheduler),
          .hparams = {},
          .tracker_state = nullptr,
          .tracker = parts_.tracker};
}

std::vector<std::shared_ptr<AnyModelStage>> TrainerBase::build_stages(const DistContext& context,
                                                                      const TrainerConfig& config,
                                                                      const StagePlacement& placement) {
  std::vector<std::shared_ptr<AnyModelStage>> stages;
  std::vector<LoadReport> loaded;
  for (const StageIndex index : placement.stages_of(context.mesh(MeshDomain::kRegular).axis_coordinate("pp"))) {
    const PipelineStageInfo info{.num_stages = placement.num_stages(), .current_stage = index.value};
    stages.push_back(binding_->initialize_stage(context, info));
    const std::shared_ptr<Module>& module = stages.back()->module;
    check_equal_model(context, *module);
    auto report = build_model_stage(context, config, parts_.model, info, module, /*resumes=*/saved_.has_value());
    if (report) loaded.push_back(std::move(*report));
    if (config.detect_non_finite) detect_non_finite(*module);
  }
  if (!loaded.empty()) warn_of_source_checkpoint(context, config.model_stage_factory, loaded);
  return stages;
}

void TrainerBase::log_graph_counts() const {
  job_.context.log().info("trainer.cuda_graph: ", graph_counts_.replays, " microbatches replayed from ",
                          graph_counts_.graphs, " graphs, ", graph_counts_.eager, " run as usual");
}

}  // namespace d9d
