// What a checkpoint contains of a training job: checkpoint_state() lists it, and load_model() and load() read it.
//
// Example
//   writer.begin(step, checkpoint_state(job, {.data = stream.state()}), num_to_keep);
//   ...                                                              // a job that continues
//   schedule.load_state(value_of(saved, "schedule"));
//   load_model(saved, context, model, config);
//   load(saved, job);
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/checkpoint/checkpoint_state.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/step/training_job.h"

namespace d9d {

// The state of a run that is not part of its job.
struct RunPosition {
  nlohmann::json data = nullptr;             // PackStream::state()
  nlohmann::json task = nullptr;             // TrainTask::state() of this rank
  nlohmann::ordered_json tracker = nullptr;  // TrackerRun::state(), of the main process
};

// Local. All that a checkpoint of the job contains, and of it the tensors.
[[nodiscard]] CheckpointState checkpoint_state(const TrainingJob& job, const RunPosition& position);
[[nodiscard]] std::map<std::string, DTensor> saved_tensors(const TrainingJob& job);

// Local. The tensors of a job that its checkpoints contain: "model.<name>", and "optimizer.<entry>" for those of
// Optimizer::state_dict(). trainable_only: without frozen parameters.
[[nodiscard]] std::map<std::string, DTensor> tensors_of(const Module& module, const Optimizer& optimizer,
                                                        bool trainable_only = false);
inline constexpr const char* kModelPrefix = "model.";
// Collective. Loads parameters and persistent buffers in place. With checkpoint_only_trainable_parameters, frozen
// parameters are not in the checkpoint and keep their values. Throws ConfigError if the checkpoint was written with
// another setting, or if frozen parameters now have another origin: another source_checkpoint, one instead of the seed,
// the seed instead of one, or another seed.
void load_model(const SavedCheckpoint& saved, const DistContext& context, const Module& module,
                const TrainerConfig& config);

// Collective. Loads the optimiser's state in place, the position of the learning-rate schedule, metrics, the number of
// updates, and the state of the tracker. JobSchedule, data and model are loaded before.
void load(const SavedCheckpoint& saved, TrainingJob& job);

// Returns a value of CheckpointState::values. Throws StateError, naming the folder, if it is missing.
[[nodiscard]] const nlohmann::ordered_json& value_of(const SavedCheckpoint& saved, const char* name);

// The TrainTask::state() that each data-parallel rank has saved; empty if all are null.
[[nodiscard]] std::vector<nlohmann::json> task_states(const SavedCheckpoint& saved);

// The source_checkpoint of the job that saved, as a resolved folder; none if it had none.
[[nodiscard]] std::optional<std::filesystem::path> source_of(const SavedCheckpoint& saved);

}  // namespace d9d
