#include "d9d/loop/checkpoint/job_saves.h"

#include <string>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/loop/checkpoint/job_checkpoints.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {
namespace {

void warn_of_unsaved_metrics(const TrainingJob& job) {
  for (const auto& [name, metric] : leaf_metrics(job.metrics)) {
    if (!metric->accumulators().empty()) continue;
    job.context.log().warning("[loop::checkpoints] the metric '", name,
                              "' has no accumulators, so that checkpoints do not contain it: a job that continues "
                              "begins it anew. Keep what it counts in accumulators (metrics/accumulator.h)");
  }
}

// Collective. A checkpoint has the states of the main process.
void check_equal_states(const DistContext& context, const EventBus& events) {
  const DeviceMesh& ranks = context.mesh(MeshDomain::kBatch);
  const std::vector<nlohmann::json> all = all_gather_object(events.states(), ranks);
  for (std::size_t i = 1; i < all.size(); ++i) {
    for (const auto& [name, state] : all[0].items()) {
      D9D_CHECK(all[i].contains(name) && all[i].at(name) == state, ConfigError,
                "[loop::checkpoints] expected the same state of the handler '", name,
                "' on all ranks, got another on rank ", ranks.ranks()[i],
                ". Compute it from what all ranks know, such as values of events.");
    }
  }
}

}  // namespace

JobSaves::JobSaves(const TrainingJob& job)
    : job_(job),
      is_enabled_(saves_checkpoints(job.config.checkpointing)),
      writer_(CheckpointDirectory(job.config.checkpointing.save_dir, job.context.mesh(MeshDomain::kBatch)),
              job.context.device(), job.context.world_size() / job.context.num_nodes()) {
  if (is_enabled_) writer_.prepare(saved_tensors(job));
  if (is_enabled_ && job.context.is_main_process()) warn_of_unsaved_metrics(job);
  for (const auto& [set, history] : job_.evaluations) kept_[set] = history.best_step;  // of the job that continues
}

Retention JobSaves::retention() {
  Retention retention{.num_to_keep = job_.config.checkpointing.num_to_keep};
  best_for_.clear();
  for (const auto& [set, history] : job_.evaluations) {
    retention.kept_steps.insert(history.best_step);
    if (history.best_step == job_.schedule.current_step()) {
      best_for_.push_back(set);  // others are removed when this one is on disk
    } else {
      retention.kept_steps.insert(kept_[set]);
    }
  }
  return retention;
}

bool JobSaves::is_due(bool is_last, bool is_best) const {
  if (!is_enabled_) return false;
  return is_last || is_best ||
         job_.schedule.should_do_action(job_.config.checkpointing.period_steps, {.after_advance = true});
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
  if (is_first || is_last) check_equal_states(job_.context, *job_.events);
  writer_.begin(job_.schedule.current_step(), checkpoint_state(job_, position), retention());
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

void JobSaves::report(const EndedSave& save, bool run_ends, bool is_last_save) {
  const CheckpointingConfig& config = job_.config.checkpointing;
  const Logger& log = job_.context.log();
  if (save.error.empty()) {
    for (const std::string& set : best_for_) kept_[set] = save.step;
    const std::filesystem::path folder = CheckpointDirectory::folder_of(config.save_dir, save.step);
    job_.events->trigger(kTrainCheckpointSaved, {.step = save.step, .folder = folder});
    if (!job_.context.is_main_process()) return;
    log.info("saved step ", save.step, " in ", config.save_dir.string(), " (", save.seconds, " s)");
    if (!save.not_removed.empty()) log.warning("[checkpoint] could not remove ", save.not_removed);
    return;
  }
  if (save.is_refused) throw ConfigError(save.error);  // the ranks' models differ, so none may be exported
  const bool is_error = is_last_save || config.on_failed_save == FailedSavePolicy::kStop;
  if (is_error && !run_ends) throw IoError(save.error);
  const std::string text = cat(save.error, " Step ", save.step, " is not saved");
  if (is_error) job_.context.fail_at_end(text);
  if (!job_.context.is_main_process()) return;
  log.error(text, is_error ? "; what follows training goes on, then the program ends with exit code 1"
                           : "; training goes on");
}

}  // namespace d9d
