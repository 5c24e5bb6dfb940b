#include "d9d/loop/checkpoint/job_saves.h"

#include <string>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/core/device/host_copy.h"
#include "d9d/loop/checkpoint/job_checkpoints.h"
#include "d9d/loop/checks/rank_consistency.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {
namespace {

// Copies of the sums of metrics on this rank, in flight from the device.
using MetricCopies = std::vector<std::pair<std::string, HostCopy>>;

MetricCopies copies_of(const MetricMap& metrics, const SideStream& copies) {
  MetricCopies result;
  for (const auto& [name, metric] : metrics) {
    const at::Tensor sums = metric->state();
    if (!sums.defined()) continue;
    result.emplace_back(name, HostCopy(sums.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true), copies));
  }
  return result;
}

nlohmann::json numbers_of(const MetricCopies& metrics) {
  nlohmann::json result = nlohmann::json::object();
  for (const auto& [name, copy] : metrics) {
    const at::Tensor numbers = copy.wait().contiguous();
    const auto* const first = numbers.const_data_ptr<double>();
    result[name] = {{"shape", numbers.sizes().vec()}, {"sums", std::vector<double>(first, first + numbers.numel())}};
  }
  return result;
}

// Returns a function that builds the values of this rank for a checkpoint; a thread calls it and waits for the copies.
std::function<nlohmann::json()> rank_values(const TrainingJob& job, const nlohmann::json& task) {
  const SideStream copies(job.context.device());
  return [task, metrics = copies_of(job.metrics, copies), loss_means = copies_of(*job.loss_means, copies)] {
    return nlohmann::json{{"task", task}, {"metrics", numbers_of(metrics)}, {"loss_means", numbers_of(loss_means)}};
  };
}

std::map<std::string, DTensor> saved_tensors(const TrainingJob& job) {
  return tensors_of(*job.module, job.optimizer, job.config.model_stage_factory.checkpoint_only_trainable_parameters);
}

// The ranks with the last stage, one for each data-parallel rank.
std::vector<std::int64_t> task_ranks(const TrainingJob& job) {
  const DeviceMesh ranks = job.context.mesh(MeshDomain::kBatch).slice({"pp", "dp"});
  const std::vector<std::int64_t> all = ranks.ranks();
  const auto first = all.begin() + job.placement.rank_of_last_stage() * ranks.axis_size("dp");
  return {first, first + ranks.axis_size("dp")};
}

CheckpointState state_of(const TrainingJob& job, const RunPosition& position) {
  const DeviceMesh& batch = job.context.mesh(MeshDomain::kBatch);
  CheckpointState state{.tensors = saved_tensors(job),
                        .buffers = buffers_of(*job.module),
                        .values = {},
                        .copies = copies_of_buffers(*job.module, job.stages, kModelPrefix),
                        .equal_values = equal_at_saves(),
                        .rank_values = rank_values(job, position.task)};
  state.values = {
      {"schedule", job.schedule.state()},
      {"num_updates", job.updates.num_updates()},
      {"lr_scheduler", job.lr_scheduler.state()},
      {"data", position.data},
      {"tracker", position.tracker},
      {"base_seed", job.config.determinism.base_seed},
      {"checkpoint_only_trainable_parameters", job.config.model_stage_factory.checkpoint_only_trainable_parameters},
      {"task_ranks", task_ranks(job)},
      {"metric_ranks", batch.slice({"pp", "dp", "cp"}).ranks()},
      {"mesh", write_record(job.context.mesh_parameters())},
      {"trainer", write_record(job.config)},
      {"written", job.written},
      {"auto_schedule", job.auto_schedule},
      {"hparams", job.hparams}};
  return state;
}

}  // namespace

JobSaves::JobSaves(const TrainingJob& job)
    : job_(job),
      is_enabled_(saves_checkpoints(job.config.checkpointing)),
      writer_(CheckpointDirectory(job.config.checkpointing.save_dir, job.context.mesh(MeshDomain::kBatch)),
              job.context.device(), job.context.world_size() / job.context.num_nodes()) {
  if (is_enabled_) writer_.prepare(saved_tensors(job));
}

bool JobSaves::is_due(bool is_last) const {
  if (!is_enabled_) return false;
  return is_last || job_.schedule.should_do_action(job_.config.checkpointing.period_steps, {.after_advance = true});
}

bool JobSaves::will_wait(bool is_last) const {
  return is_last || writer_.is_saving() || writer_.writes_at_once() != false;
}

void JobSaves::save(const RunPosition& position, bool is_last) {
  if (writer_.is_saving() && job_.context.is_main_process()) {
    job_.context.log().info("waits for the save before to end");
  }
  if (const auto before = writer_.finish()) report(*before, is_last, /*is_last_save=*/false);
  const bool is_first = !writer_.writes_at_once().has_value();
  writer_.begin(job_.schedule.current_step(), state_of(job_, position), job_.config.checkpointing.num_to_keep);
  const bool waits = *writer_.writes_at_once();
  if (is_first && waits && job_.context.is_main_process()) {
    job_.context.log().warning(
        "[checkpoint] a copy of what the job saves does not fit into half of the host memory that "
        "is left: training waits for the disk at each save");
  }
  if (!waits && !is_last) return;
  if (const auto saved = writer_.finish()) report(*saved, is_last, is_last);
}

void JobSaves::wait_for_copies_before_handlers() const {
  const EventBus& events = *job_.events;
  const bool has_handlers = events.has_handlers(kTrainStepPre) || events.has_handlers(kTrainForwardBackwardPre) ||
                            events.has_handlers(kTrainForwardBackwardPost);
  if (has_handlers) wait_for_copies();
}

void JobSaves::advance(const SaveProgress& all, bool stops) {
  const bool is_last = stops || job_.schedule.current_step() + 1 == job_.schedule.total_steps();
  if (const auto ended = writer_.advance(all)) report(*ended, is_last, /*is_last_save=*/false);
}

void JobSaves::report(const EndedSave& save, bool run_ends, bool is_last_save) const {
  const CheckpointingConfig& config = job_.config.checkpointing;
  const Logger& log = job_.context.log();
  if (save.error.empty()) {
    if (!job_.context.is_main_process()) return;
    log.info("saved step ", save.step, " in ", config.save_dir.string(), " (", save.seconds, " s)");
    if (!save.not_removed.empty()) log.warning("[checkpoint] could not remove ", save.not_removed);
    return;
  }
  if (save.is_refused) throw ConfigError(save.error);  // the ranks' models differ: none of them is to be exported
  const bool is_error = is_last_save || config.on_failed_save == FailedSavePolicy::kStop;
  if (is_error && !run_ends) throw IoError(save.error);
  const std::string text = cat(save.error, " Step ", save.step, " is not saved");
  if (is_error) job_.context.fail_at_end(text);
  if (!job_.context.is_main_process()) return;
  log.error(text, is_error ? "; what follows training goes on, then the program ends with exit code 1"
                           : "; training goes on");
}

}  // namespace d9d
