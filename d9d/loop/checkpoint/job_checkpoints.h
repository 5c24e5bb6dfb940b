// The checkpoints of a job: the folder for them, the one to resume from, and the comparison of its settings with those
// of the job. JobSaves (job_saves.h) writes checkpoints, job_state.h says what they contain.
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

// Whether the job saves and resumes: it does unless trainer.checkpointing.period_steps is "disable".
[[nodiscard]] bool saves_checkpoints(const CheckpointingConfig& config);

// Collective. Locks the checkpoint folder for this job until the returned lock is destroyed. The lock is null except on
// the main process, and if the job does not save. Throws IoError if no checkpoint could be written to the folder, or if
// another job has locked it.
[[nodiscard]] std::unique_ptr<FolderLock> prepare_saves(const DistContext& context, const CheckpointingConfig& config);

// Collective. Returns the newest checkpoint, from which the job resumes; none if it starts anew.
[[nodiscard]] std::optional<SavedCheckpoint> newest_checkpoint(const DistContext& context,
                                                               const CheckpointingConfig& config);

// Collective. Throws IoError if a file or folder that is no checkpoint has the name of a checkpoint of a step that this
// job has not done yet.
void check_names_of_saves(const DistContext& context, const CheckpointingConfig& config, const JobSchedule& schedule);

// Collective. Returns the configuration with source_checkpoint resolved to one folder, the same on all ranks: for a
// folder of checkpoints, its newest checkpoint. A resumed job whose frozen parameters come from source_checkpoint gets
// the checkpoint that the previous job has read. The checkpoints of this job record the resolved folder.
[[nodiscard]] TrainerConfig with_found_source(const DistContext& context, const TrainerConfig& config,
                                              const std::optional<SavedCheckpoint>& resumed);

// Local. Called before the state of an optimiser is saved or loaded. Throws StateError if state_dict() returns new
// tensors at each call. The main process warns if state_dict() is empty, if an entry of several elements belongs to
// no parameter, or if only some parameters have entries.
void check_optimizer_state(const DistContext& context, const Module& module, const Optimizer& optimizer);

// Returns the value of TrainingJob::written. given: the configuration of the trainer as the user wrote it.
[[nodiscard]] nlohmann::ordered_json written_settings(const TrainerConfig& given, const OptimizerProvider& optimizer,
                                                      const LearningRateSchedulerProvider& lr_scheduler);

// Local. The main process logs one warning that lists the settings which differ from those of the job that saved.
// Compared are the hparams of task and model (dump_hparams) and TrainingJob::written, without trainer.run and
// trainer.schedule. Shapes of tensors would not show such a difference, of a rope_base for instance.
void warn_of_other_settings(const DistContext& context, const SavedCheckpoint& saved, const nlohmann::json& hparams,
                            const nlohmann::json& written);

// Local. Loads the weights in a checkpoint of another job as the initial weights of `module`, by its names.
LoadReport load_saved_model(Module& module, const SavedCheckpoint& saved, const LoadOptions& options);

}  // namespace d9d
