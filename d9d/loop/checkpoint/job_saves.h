// The saves of a training run, which go on beside its steps.
//
// Example
//   JobSaves saves(job);
//   while (...) {
//     ...                                                          // forward, backward
//     saves.wait_for_copies();
//     const StepGradients step = gradients.apply(optimizer, rate, {.save = saves.progress()});
//     saves.advance(step.save, step.stops);
//     ...
//     if (saves.is_due(is_last)) saves.save({.data = stream.state()}, is_last);
//   }
#pragma once

#include <cstdint>

#include <nlohmann/json.hpp>

#include "d9d/checkpoint/checkpoint_writer.h"
#include "d9d/loop/step/training_job.h"

namespace d9d {

// What a run knows beside its job.
struct RunPosition {
  nlohmann::json data = nullptr;             // PackStream::state()
  nlohmann::json task = nullptr;             // TrainTask::state() of this rank
  nlohmann::ordered_json tracker = nullptr;  // TrackerRun::state(), of the main process
};

class JobSaves {
 public:
  // `job` is borrowed. Host memory for the saves is made meanwhile.
  explicit JobSaves(const TrainingJob& job);

  // Whether a checkpoint is to be written now, after JobSchedule::advance(); is_last: no step follows in this run.
  [[nodiscard]] bool is_due(bool is_last) const;
  // Whether save() waits for disks, the same on all ranks: at the end of a run, when the save before is not done, and
  // where a rank lacks memory for a copy.
  [[nodiscard]] bool will_wait(bool is_last) const;
  // Collective where it waits, else local. Throws IoError on all ranks where it has waited and nothing could be saved,
  // if trainer.checkpointing.on_failed_save is to stop; ConfigError on all ranks where it has waited and ranks have
  // other values of what they share (equal_ranks.h), whatever on_failed_save says. At the end of a run neither
  // loses anything else: what follows, such as an export, happens, and then the program ends with the error
  // (DistContext::fail_at_end).
  void save(const RunPosition& position, bool is_last);

  // Local. Later work of the current stream may change parameters and the optimiser's state.
  void wait_for_copies() const { writer_.wait_for_copies(); }
  // The same, where handlers run before that: they may write to parameters.
  void wait_for_copies_before_handlers() const;
  [[nodiscard]] SaveProgress progress() const { return writer_.progress(); }
  // `all`: the sum over the ranks of what progress() said before the step; stops: no step follows, though some are
  // left. Throws as save().
  void advance(const SaveProgress& all, bool stops);

 private:
  // run_ends: no step follows. is_last_save: nor does a save.
  void report(const EndedSave& save, bool run_ends, bool is_last_save) const;

  const TrainingJob& job_;
  const bool is_enabled_;
  CheckpointWriter writer_;
};

}  // namespace d9d
