#include "d9d/loop/run/job_builder.h"

#include <chrono>
#include <functional>
#include <utility>

#include "d9d/loop/checks/custom_schedule.h"
#include "d9d/loop/checks/first_step_checks.h"
#include "d9d/loop/checks/rank_consistency.h"
#include "d9d/loop/config/unsupported.h"
#include "d9d/loop/graphs/cuda_graph_rules.h"
#include "d9d/loop/graphs/warm_up.h"
#include "d9d/loop/job/model_builder.h"
#include "d9d/loop/job/reference_model.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/measure/auto_schedule.h"
#include "d9d/loop/measure/memory_budget.h"
#include "d9d/loop/run/job_tracker.h"
#include "d9d/loop/run/step_profiler.h"
#include "d9d/loop/step/local_stages.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {

nlohmann::json hparams_of(const JobParts& parts) {
  return {{"task", parts.task.dump_hparams()}, {"model", hparams_of(parts.model)}};
}

nlohmann::json JobBuilder::settings_of_parts() const {
  nlohmann::json all = hparams_of(parts_);
  all["optimizer"] = parts_.optimizer.dump_hparams();
  all["lr_scheduler"] = parts_.lr_scheduler.dump_hparams();
  return all;
}

void JobBuilder::check(const TrainerConfig& given) {
  refuse_unsupported(given);
  check_reference(given, parts_.task);
  refuse_two_schedules(parts_.pipeline_schedule, given.pipelining.schedule);
  context_.set_timeout(std::chrono::seconds(given.timeout.init_timeout));
  check_equal_config(context_, given, settings_of_parts());
  check_cuda_graph(context_, given);
  check_memory_budget(context_, given);
  check_profiling(given.profiling, context_);
  check_cuda_graph(given, binding_.has_key());
}

std::unique_ptr<EventBus> JobBuilder::announce() const {
  auto events = std::make_unique<EventBus>();
  parts_.task.register_events(context_, *events);
  parts_.model.register_events(context_, *events);
  events->trigger(kTrainConfigStarted, {.dist_context = context_});
  return events;
}

JobSchedule JobBuilder::open_data(const TrainerConfig& given, EventBus& events) {
  packs_ = binding_.build_packs(context_, given, events);
  check_data_order(context_, packs_->stream().state());
  open_evaluation_data(given);
  saves_lock_ = prepare_saves(context_, given.checkpointing);
  saved_ = newest_checkpoint(context_, given.checkpointing);
  const bool continues = continues_data(given);
  std::optional<std::int64_t> available = packs_->stream().total_steps();
  if (available) *available += data_phase_.first_step;
  JobSchedule schedule(total_steps_of(given.schedule.total_steps, available));
  if (saved_) schedule.load_state(value_of(*saved_, "schedule"));
  if (continues) packs_->rewind(value_of(*saved_, "data"));
  check_names_of_saves(context_, given.checkpointing, schedule);
  return schedule;
}

bool JobBuilder::continues_data(const TrainerConfig& given) {
  data_phase_ = saved_ ? data_phase_of(*saved_) : DataPhase{.name = given.data_phase};
  if (!saved_ || !given.data_phase || given.data_phase == data_phase_.name) return saved_.has_value();
  if (context_.is_main_process()) {
    context_.log().info("trainer.data_phase '", *given.data_phase, "' begins after step ", saved_->step(),
                        ": the data is read from its start, not from the position in ", saved_->folder().string());
  }
  data_phase_ = {.name = given.data_phase, .first_step = saved_->step()};
  return false;
}

void JobBuilder::open_evaluation_data(const TrainerConfig& given) {
  for (const std::string& name : binding_.evaluation_sets()) {
    if (given.evaluation.contains(name) || !context_.is_main_process()) continue;
    context_.log().warning("the evaluation set '", name, "' is not used: trainer.evaluation.", name,
                           " does not say when. Set its period_steps, to \"disable\" if it shall rest.");
  }
  for (const auto& [name, config] : given.evaluation) {
    D9D_CHECK(!name.empty() && name != "train", ConfigError, "[loop::trainer] expected names of evaluation sets other ",
              "than '' and 'train', which are not series of a tracker or are those of training, got '", name,
              "'. Rename the set.");
    if (context_.is_main_process()) context_.log().info("evaluation set '", name, "':");
    auto packs = binding_.build_evaluation_packs(context_, given, name);
    D9D_CHECK(packs != nullptr, ConfigError, "[loop::trainer] expected data for trainer.evaluation.", name,
              ", got none from the program. Give it in TrainerParts::evaluation, or remove the key.");
    evaluation_packs_.emplace(name, std::move(packs));
  }
}

PipelineSchedule JobBuilder::pipeline_of(const TrainerConfig& config) const {
  if (!parts_.pipeline_schedule) return schedule_of(config.pipelining.schedule);
  return as_trained(*parts_.pipeline_schedule, context_.mesh(MeshDomain::kRegular).axis_size("pp"));
}

TrainingJob JobBuilder::build(const TrainerConfig& given) {
  check(given);
  // Before the warm-up, which is the first use of a GPU: it starts processes that import while the model is built.
  const auto tracker = job_tracker(context_, given.logging, parts_.trackers, parts_.tracker);
  warm_up_ = start_warm_up(context_.device());
  std::unique_ptr<EventBus> events = announce();
  const JobSchedule schedule = open_data(given, *events);
  // A schedule that does not fit the run is refused before anything is measured or built.
  LearningRateScheduler lr_scheduler = parts_.lr_scheduler.build_scheduler(context_, schedule.total_steps());
  const TrainerConfig found = with_found_source(context_, given, saved_, parts_.task.reference().has_value());
  packs_->stream().start();  // so that the first step's data is ready when the model is

  const auto unbuilt = [&](const TrainerConfig& of_job) {
    return UnbuiltJob{context_, of_job, binding_, *packs_, parts_.task, parts_.model, schedule};
  };
  const TrainerConfig config = with_chosen_schedule(unbuilt(found), saved_);
  const nlohmann::json data = binding_.data_hparams();
  nlohmann::json settings = settings_of_parts();
  settings.update(data);
  write_configuration(context_, config, settings);
  const PipelineSchedule pipeline = pipeline_of(config);
  const StagePlacement placement = placement_of(pipeline, context_.mesh(MeshDomain::kRegular).axis_size("pp"));
  check_equal_schedule(context_, pipeline.name, placement);
  const auto budgeted = plans_within_budget(unbuilt(config), pipeline);

  const std::function<std::shared_ptr<AnyModelStage>(const PipelineStageInfo&)> initialize =
      [&](const PipelineStageInfo& info) { return binding_.initialize_stage(context_, info); };
  const auto model_stages = build_model_stages(context_, config, parts_.model, placement, initialize,
                                               saved_ ? StagesOf::kResumedJob : StagesOf::kNewJob);
  std::vector<std::shared_ptr<Module>> stages;
  for (const auto& stage : model_stages) stages.push_back(stage->module);
  if (budgeted) follow_plans(*budgeted, stages);
  const std::shared_ptr<Module> module = local_stages(stages);
  check_cuda_graph(config, *module);
  if (saved_) {
    load_model(*saved_, context_, *module, config);
    update_copies(copies_of(stages));
  }
  ModelStagesReady ready;
  for (const auto& stage : stages) ready.modules.emplace_back(*stage);
  events->trigger(kTrainModelStagesReady, ready);
  check_equal_model(context_, *module);  // event handlers may have changed the model

  RandomClockPtr clock = share_random_clock(context_, *module, config);
  auto reference = build_reference({.context = context_,
                                    .config = config,
                                    .task = parts_.task,
                                    .provider = parts_.model,
                                    .placement = placement,
                                    .clock = clock,
                                    .initialize = initialize,
                                    .saved = saved_},
                                   *module);
  MetricMap metrics = checked_metrics(parts_.task);
  FreezeGuard freeze_guard(module->named_parameters());
  Optimizer optimizer = parts_.optimizer.build_optimizer(context_, trainable_parameters(*module));
  std::optional<Ema> ema;
  if (config.ema) ema.emplace(trainable_parameters(*module).parameters, config.ema->average);
  const bool is_own = dynamic_cast<const AutoOptimizerProvider*>(&parts_.optimizer) == nullptr;  // of the program
  if (is_own && saves_checkpoints(config.checkpointing)) check_optimizer_state(context_, *module, optimizer);
  if (context_.is_main_process()) warn_of_float16(context_, *module);
  check_equal_rates(context_, optimizer.learning_rate(), lr_scheduler.factor());
  std::optional<std::string> rate_picture;
  if (context_.is_main_process()) {
    rate_picture = parts_.lr_scheduler.draw(optimizer.learning_rate(), schedule.total_steps());
  }
  return {.context = context_,
          .config = config,
          .events = std::move(events),
          .schedule = schedule,
          .data_phase = data_phase_,
          .module = module,
          .model_stages = model_stages,
          .stages = stages,
          .reference = std::move(reference),
          .pipeline_schedule = pipeline,
          .has_custom_schedule = parts_.pipeline_schedule.has_value(),
          .placement = placement,
          .clock = std::move(clock),
          .metrics = std::move(metrics),
          .freeze_guard = std::move(freeze_guard),
          .optimizer = std::move(optimizer),
          .ema = std::move(ema),
          .lr_scheduler = std::move(lr_scheduler),
          .rate_picture = std::move(rate_picture),
          .auto_schedule = auto_schedule_of(given),
          .device_budget = budgeted ? std::optional(budgeted->device_bytes) : std::nullopt,
          .written = written_settings(given, parts_.optimizer, parts_.lr_scheduler, data),
          .hparams = {},
          .tracker_state = nullptr,
          .flops_per_token = parts_.model.flops_per_token(),
          .tracker = tracker};
}

void JobBuilder::load_state(TrainingJob& job) {
  const auto saved = std::exchange(saved_, std::nullopt);
  if (!saved) return;
  check_adapter_scale(*saved, hparams_of(parts_).value("model", nlohmann::json::object()));
  load(*saved, job);
  warn_of_other_settings(context_, *saved, hparams_of(parts_), job.written);
  if (const auto states = task_states(*saved); !states.empty()) parts_.task.load_state(states);
  job.events->trigger(kTrainCheckpointLoaded, {.step = saved->step(), .folder = saved->folder()});
}

}  // namespace d9d
