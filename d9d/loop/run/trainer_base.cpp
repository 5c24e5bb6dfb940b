#include "d9d/loop/run/trainer_base.h"

#include <exception>
#include <optional>
#include <utility>

#include "d9d/loop/checkpoint/export_model.h"
#include "d9d/loop/run/evaluations.h"
#include "d9d/loop/step/microbatch_runner.h"
#include "d9d/loop/step/reference_pass.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {

namespace {

// Those that are trained, and those of a frozen copy.
std::vector<std::shared_ptr<Module>> all_stages_of(const TrainingJob& job) {
  std::vector<std::shared_ptr<Module>> stages = job.stages;
  if (!job.reference) return stages;
  for (const auto& stage : job.reference->copy) stages.push_back(stage->module);
  return stages;
}

}  // namespace

TrainerBase::TrainerBase(const DistContext& context, const TrainerConfig& config, const JobParts& parts,
                         std::unique_ptr<TaskBinding> binding)
    : parts_(parts),
      binding_(std::move(binding)),
      builder_(context, parts_, *binding_),
      job_(builder_.build(config)),
      all_stages_(all_stages_of(job_)),
      sleep_(context, *job_.offloads, all_stages_, job_.config.timeout) {
  sleep_.add_stages();
  sleep_.add_optimizer(job_.optimizer);
  if (job_.ema) sleep_.add_averages(*job_.ema);
  builder_.load_state(job_);
  job_.events->trigger(kTrainOptimizerReady, {.optimizer = job_.optimizer});
  job_.events->trigger(kTrainLRSchedulerReady, {.lr_scheduler = job_.lr_scheduler});
}

TrainerBase::~TrainerBase() = default;

TrainingOutcome TrainerBase::train() {
  try {
    return train_and_finalize();
  } catch (const std::exception& error) {
    try {
      job_.events->trigger(kTrainFailed, {.error = error});
    } catch (const std::exception&) {  // the error of the job is the one to report
    }
    throw;
  }
}

void TrainerBase::sleep(const SleepTags& tags) {
  sleep_.sleep(tags, [&](const SleepTags& due, const std::function<void()>& body) {
    job_.events->run_between(kTrainSleepPre, kTrainSleepPost, {.tags = due}, body);
  });
}

void TrainerBase::wake(const SleepTags& tags) {
  sleep_.wake(tags, [&](const SleepTags& due, const std::function<void()>& body) {
    job_.events->run_between(kTrainWakePre, kTrainWakePost, {.tags = due}, body);
  });
}

TrainingOutcome TrainerBase::train_and_finalize() {
  job_.offloads->check_awake("train");
  job_.hparams = hparams_of(parts_);
  std::optional<ReferencePass> reference;
  if (job_.reference) reference.emplace(job_);
  ReferencePass* const of_task = reference ? &*reference : nullptr;
  MicrobatchRunner runner(job_, parts_.task, builder_.packs(), of_task);
  Evaluations evaluations(job_, parts_.task, parts_.model, builder_.evaluation_packs(), builder_.packs(), of_task);
  JobExports exports(job_, parts_.model);
  const TrainingOutcome outcome = run_training(job_, runner, evaluations, exports);
  graph_counts_ = runner.graph_counts();
  if (job_.config.cuda_graph && job_.context.is_main_process()) log_graph_counts();
  parts_.task.finalize();
  job_.events->trigger(kTrainFinished, {});
  return outcome;
}

void TrainerBase::export_to(const std::filesystem::path& directory) {
  job_.offloads->check_awake("export its model");
  export_model(job_, parts_.model.prepare_export(*job_.module), directory);
}

void TrainerBase::log_graph_counts() const {
  job_.context.log().info("trainer.cuda_graph: ", graph_counts_.replays, " microbatches replayed from ",
                          graph_counts_.graphs, " graphs, ", graph_counts_.eager, " run as usual");
}

}  // namespace d9d
