// Saves checkpoints of a training run, in the background of its steps.
//
// Example
//   JobSaves saves(job);
//   while (...) {
//     ...                                                          // forward, backward
//     saves.wait_for_copies();
//     const JobVotes votes = ...                        // of all ranks, with saves.progress() (rank_votes.h)
//     saves.advance(votes.save, votes.stops);
//     ...
//     if (saves.is_due(is_last, is_best)) saves.save({.data = stream.state()}, is_last);
//   }
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "d9d/checkpoint/checkpoint_writer.h"
#include "d9d/loop/checkpoint/job_state.h"
#include "d9d/loop/step/training_job.h"

namespace d9d {

class JobSaves {
 public:
  // `job` must outlive this object. If the job saves, a thread begins to allocate host memory for copies of its
  // tensors.
  explicit JobSaves(const TrainingJob& job);

  // Returns whether a checkpoint is due. Called after JobSchedule::advance(). is_last: no step follows in this run.
  // is_best: an evaluation of the step is the best so far.
  [[nodiscard]] bool is_due(bool is_last, bool is_best) const;
  // Returns whether save() waits for the disk or for other ranks, the same on all ranks. It does at the end of a run,
  // while the previous save is being written, if a rank lacks host memory for a copy, and at the first save, when the
  // ranks learn whether one of them does.
  [[nodiscard]] bool will_wait(bool is_last) const;
  // Writes a checkpoint, or starts to write it in the background. Collective if will_wait(), otherwise local; throws,
  // on all ranks, only if it waits. Throws IoError if a save failed and trainer.checkpointing.on_failed_save is "stop",
  // ConfigError if ranks have different values of a shared tensor (rank_consistency.h). At the end of a run it does not
  // throw IoError: an export may still follow, after which the program ends with the error (DistContext::fail_at_end).
  void save(const RunPosition& position, bool is_last);

  // Local. Makes later work of the current stream wait until parameters and optimiser state have been copied, since it
  // may change them.
  void wait_for_copies() const { writer_.wait_for_copies(); }
  // Calls wait_for_copies() if an event that is triggered before the optimiser's step has a handler, which may write to
  // parameters.
  void wait_for_copies_before_handlers() const;
  [[nodiscard]] SaveProgress progress() const { return writer_.progress(); }
  // Called in each step. Moves a save in flight forward, and reports it when it has ended: logs the result and triggers
  // kTrainCheckpointSaved, or handles the error. all: the sum over all ranks of progress() in this step. stops: the run
  // ends after this step although steps are left. Throws as save() does.
  void advance(const SaveProgress& all, bool stops);

 private:
  // The best step of each evaluation set, and the best before that if the save of the new one has failed.
  [[nodiscard]] Retention retention();
  // run_ends: no step follows in this run. is_last_save: `save` is the last one of this run.
  void report(const EndedSave& save, bool run_ends, bool is_last_save);

  const TrainingJob& job_;
  const bool is_enabled_;
  CheckpointWriter writer_;
  // By evaluation set: the best step that is known to be on disk.
  std::map<std::string, std::int64_t> kept_;
  std::vector<std::string> best_for_;  // the sets of which the newest save is the best
};

}  // namespace d9d
