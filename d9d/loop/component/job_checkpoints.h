// Saving a training job and continuing it: which of its parts a checkpoint holds, and when one is written.
//
// Example
//   const JobCheckpoints checkpoints(context, config.checkpointing);
//   if (const auto saved = checkpoints.newest()) schedule.load_state(value_of(*saved, "schedule"));
//   ...                                                              // model
//   if (saved) load_model(*saved, context, model);
//   ...                                                              // optimiser
//   if (saved) load(*saved, job);
//   while (...) { ...; if (checkpoints.is_due(schedule, is_last)) checkpoints.save(job, {.data = stream.state()}); }
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/component/training_job.h"

namespace d9d {

// What a run knows beside its job.
struct RunPosition {
  nlohmann::json data = nullptr;             // PackStream::state()
  nlohmann::json task = nullptr;             // TrainTask::state() of this rank
  nlohmann::ordered_json tracker = nullptr;  // TrackerRun::state(), of the main process
};

class JobCheckpoints {
 public:
  // Does nothing and finds nothing with trainer.checkpointing.period_steps = "disable".
  JobCheckpoints(const DistContext& context, const CheckpointingConfig& config);

  // Collective. The checkpoint that the job continues from. Throws IoError if none could be written to the folder.
  [[nodiscard]] std::optional<SavedCheckpoint> newest() const;

  // Whether one is to be written now, after JobSchedule::advance(); is_last: no step follows in this run.
  [[nodiscard]] bool is_due(const JobSchedule& schedule, bool is_last) const;
  // Collective. IoError on all ranks if it cannot be written.
  void save(const TrainingJob& job, const RunPosition& position) const;

 private:
  const DistContext& context_;  // borrowed
  CheckpointingConfig config_;
  CheckpointDirectory directory_;
};

// Collective. Parameters and persistent buffers, in place.
void load_model(const SavedCheckpoint& saved, const DistContext& context, const Module& module);

// Collective. The optimiser's state, in place, the position of the learning-rate schedule, and metrics. JobSchedule,
// data and model have got theirs already.
void load(const SavedCheckpoint& saved, TrainingJob& job);

// A value that save() wrote. StateError, naming the folder, if it is not there.
[[nodiscard]] const nlohmann::ordered_json& value_of(const SavedCheckpoint& saved, const char* name);

// What the tasks of the data-parallel ranks saved; empty if that is nothing.
[[nodiscard]] std::vector<nlohmann::json> task_states(const SavedCheckpoint& saved);

// Local. The tensors of a job: "model.<name>", "optimizer.<name>". An entry "<parameter>.<slot>" of
// Optimizer::state_dict() with the shape of what this rank keeps of the parameter has its layout; any other is the same
// on all ranks. Throws StateError for one that is not a number and belongs to a sharded parameter in another shape.
[[nodiscard]] std::map<std::string, DTensor> tensors_of(const Module& module, const Optimizer& optimizer);

}  // namespace d9d
