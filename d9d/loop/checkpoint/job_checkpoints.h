// Prepares the folder for the checkpoints of a job, finds the checkpoint to resume from, and compares its settings with
// those of the job. JobSaves (job_saves.h) writes checkpoints, job_state.h says what they contain.
//
// Example
//   const auto lock = prepare_saves(context, config.checkpointing);
//   const auto saved = newest_checkpoint(context, config.checkpointing);
//   if (saved) schedule.load_state(value_of(*saved, "schedule"));
//   ...                                                              // model
//   if (saved) load_model(*saved, context, model, config);
//   ...                                                              // optimiser
//   if (saved) load(*saved, job);
#pragma once

#include <memory>
#include <optional>

#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/loop/task/providers.h"
#include "d9d/model_state/load_model_state.h"

namespace d9d {

// Returns whether the job saves and resumes: it does unless trainer.checkpointing.period_steps is "disable".
[[nodiscard]] bool saves_checkpoints(const CheckpointingConfig& config);

// Collective. Locks the checkpoint folder for this job until the returned lock is destroyed. The lock is null if the
// job does not save, and on all ranks but the main process. Throws IoError if checkpoints cannot be written to the
// folder, or if another job has locked it.
[[nodiscard]] std::unique_ptr<FolderLock> prepare_saves(const DistContext& context, const CheckpointingConfig& config);

// Collective. Returns the newest checkpoint, from which the job resumes; none if it starts anew.
[[nodiscard]] std::optional<SavedCheckpoint> newest_checkpoint(const DistContext& context,
                                                               const CheckpointingConfig& config);

// Collective. Throws IoError if a file or folder that is not a checkpoint has a name that this job may need for one of
// its next checkpoints: save-<step> of a step that the job has not done yet.
void check_names_of_saves(const DistContext& context, const CheckpointingConfig& config, const JobSchedule& schedule);

// Collective. Returns the configuration with source_checkpoint resolved to one folder, the same on all ranks: for a
// folder of checkpoints, its newest checkpoint. If a resumed job takes its frozen parameters or its reference from
// source_checkpoint, and that is a folder of checkpoints, they come from the checkpoint in it that the job read before
// it was resumed. The checkpoints of this job record the resolved folder. has_reference: AnyTask::reference().
[[nodiscard]] TrainerConfig with_found_source(const DistContext& context, const TrainerConfig& config,
                                              const std::optional<SavedCheckpoint>& resumed, bool has_reference);

// Local. If the job saves, the main process writes <save_dir>/config.json: mesh and trainer with all defaults, and
// `parts`, the settings of the other parts by name. config: with the schedule that "auto" has chosen. A file of this
// name that no job has written stays, with a warning. Throws IoError.
void write_configuration(const DistContext& context, const TrainerConfig& config, const nlohmann::json& parts);

// Local. Called before the state of an optimiser is saved or loaded. Throws StateError if state_dict() returns new
// tensors at each call. The main process warns if state_dict() is empty, if an entry of several elements belongs to
// no parameter, or if only some parameters have entries.
void check_optimizer_state(const DistContext& context, const Module& module, const Optimizer& optimizer);

// Returns the value of TrainingJob::written. given: the configuration of the trainer as the user wrote it. data:
// TaskBinding::data_hparams().
[[nodiscard]] nlohmann::ordered_json written_settings(const TrainerConfig& given, const OptimizerProvider& optimizer,
                                                      const LearningRateSchedulerProvider& lr_scheduler,
                                                      const nlohmann::json& data);

// Local. The main process logs one warning that lists all keys whose values differ from those of the job that saved,
// each with its old and new value. Compared are the hparams of task and model (dump_hparams) and TrainingJob::written,
// without trainer.run. Loading alone would not detect a setting that changes no tensor shape, such as rope_base.
void warn_of_other_settings(const DistContext& context, const SavedCheckpoint& saved, const nlohmann::json& hparams,
                            const nlohmann::json& written);
// Local. Throws ConfigError if the adapters of a job that goes on have another scale than those of the saved one: what
// they learned would count otherwise. model: hparams_of() its provider.
void check_adapter_scale(const SavedCheckpoint& saved, const nlohmann::json& model);
// Local. Logs the same as warn_of_other_settings() for a job that begins with the weights of another, if both have
// adapters. model: hparams_of() its provider.
void warn_of_other_adapters(const DistContext& context, const SavedCheckpoint& saved, const nlohmann::json& model);

// Local. Loads the weights of another job's checkpoint as the initial weights of `module`, by the names in `module`.
// Throws ConfigError for one that has adapters without the weights that they belong to.
LoadReport load_saved_model(Module& module, const SavedCheckpoint& saved, const LoadOptions& options);

}  // namespace d9d
