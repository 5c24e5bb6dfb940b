// The state of a training job in a checkpoint: checkpoint_state() collects it, load_model() and load() restore it.
//
// Example
//   writer.begin(step, checkpoint_state(job, {.data = stream.state()}), retention);
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

// The part of a run's state that is not in its TrainingJob.
struct RunPosition {
  nlohmann::json data = nullptr;             // PackStream::state()
  nlohmann::json task = nullptr;             // TrainTask::state() of this rank
  nlohmann::ordered_json tracker = nullptr;  // TrackerRun::state() on the main process
};

// Local. Returns all state that a checkpoint of the job contains. saved_tensors() returns only its tensors:
// tensors_of(), and "ema.<entry>" for those of Ema::state_dict().
[[nodiscard]] CheckpointState checkpoint_state(const TrainingJob& job, const RunPosition& position);
[[nodiscard]] std::map<std::string, DTensor> saved_tensors(const TrainingJob& job);

// Local. Returns the tensors that a checkpoint contains: "model.<name>" for those of the module, "optimizer.<entry>"
// for those of Optimizer::state_dict(). trainable_only: leaves out frozen parameters.
[[nodiscard]] std::map<std::string, DTensor> tensors_of(const Module& module, const Optimizer& optimizer,
                                                        bool trainable_only = false);
inline constexpr const char* kModelPrefix = "model.";
inline constexpr const char* kEmaPrefix = "ema.";
// Collective. Loads parameters and persistent buffers in place. With checkpoint_only_trainable_parameters, frozen
// parameters are not in the checkpoint and keep their values. Throws ConfigError if the checkpoint was written with
// another value of that setting, or by a job whose frozen parameters came from another source_checkpoint or seed.
void load_model(const SavedCheckpoint& saved, const DistContext& context, const Module& module,
                const TrainerConfig& config);

// Collective. Loads what load_model() leaves out: the state of the optimiser and averages of the weights (in place), of
// the learning-rate schedule, of metrics and means of losses, of the tracker and of event handlers, the counts of
// updates and skipped steps, the window of spikes, and past evaluations. Called after JobSchedule, data and model were
// loaded.
void load(const SavedCheckpoint& saved, TrainingJob& job);

// Returns a value of CheckpointState::values. Throws StateError, naming the folder, if it is missing.
[[nodiscard]] const nlohmann::ordered_json& value_of(const SavedCheckpoint& saved, const char* name);

// Returns the ranks whose AnyTask::state() a checkpoint contains: those with the last pipeline stage, one for each
// data-parallel rank, in rank order.
[[nodiscard]] std::vector<std::int64_t> task_ranks(const DistContext& context, const StagePlacement& placement);
// Returns the TrainTask::state() that each data-parallel rank has saved; empty if all are null.
[[nodiscard]] std::vector<nlohmann::json> task_states(const SavedCheckpoint& saved);

// Returns the data of which the checkpoint's "data" is a position.
[[nodiscard]] DataPhase data_phase_of(const SavedCheckpoint& saved);

// Returns the source_checkpoint of the job that saved, as a resolved folder; none if that job had none.
[[nodiscard]] std::optional<std::filesystem::path> source_of(const SavedCheckpoint& saved);
// Local. Throws ConfigError unless a job that goes on began with the weights and adapters that this configuration
// names, from which its reference is built again.
void check_source_of_reference(const SavedCheckpoint& saved, const TrainerConfig& config);

}  // namespace d9d
