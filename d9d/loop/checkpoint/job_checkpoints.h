// What a checkpoint holds of a training job, and continuing from one. JobSaves (job_saves.h) writes them.
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

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/loop/task/providers.h"
#include "d9d/model_state/load_model_state.h"

namespace d9d {

// Whether the job saves and resumes: unless trainer.checkpointing.period_steps is "disable".
[[nodiscard]] bool saves_checkpoints(const CheckpointingConfig& config);

// Collective. Makes the job's folder of checkpoints its own until the result, on the main process, is destroyed; null
// where the job does not save. Throws IoError if none could be written to the folder, or if another job has it.
[[nodiscard]] std::unique_ptr<FolderLock> prepare_saves(const DistContext& context, const CheckpointingConfig& config);

// Collective. The checkpoint that the job continues from.
[[nodiscard]] std::optional<SavedCheckpoint> newest_checkpoint(const DistContext& context,
                                                               const CheckpointingConfig& config);

// Collective. IoError if what is no checkpoint has the name of one that the job comes to.
void check_names_of_saves(const DistContext& context, const CheckpointingConfig& config, const JobSchedule& schedule);

// Collective. The configuration with the folder that its source_checkpoint means now, the same on all ranks: of a
// folder of checkpoints the newest. A job that resumes and takes frozen parameters from there means the one that the
// job before has read. Checkpoints name that folder.
[[nodiscard]] TrainerConfig with_found_source(const DistContext& context, const TrainerConfig& config,
                                              const std::optional<SavedCheckpoint>& resumed);

// Local. Before an optimiser's state is saved or read into. StateError if state_dict() returns new tensors at each
// call; the main process warns of an optimiser without state, of entries that belong to no parameter, and of
// parameters without an entry where others have one.
void check_optimizer_state(const DistContext& context, const Module& module, const Optimizer& optimizer);

// Collective. Parameters and persistent buffers, in place. With checkpoint_only_trainable_parameters frozen parameters
// are not in the checkpoint and stay. ConfigError if it was written with another setting, or if frozen parameters now
// come from elsewhere: from another source_checkpoint, from one instead of the seed, the reverse, or another seed.
void load_model(const SavedCheckpoint& saved, const DistContext& context, const Module& module,
                const TrainerConfig& config);

// TrainingJob::written.
[[nodiscard]] nlohmann::ordered_json written_settings(const TrainerConfig& given, const OptimizerProvider& optimizer,
                                                      const LearningRateSchedulerProvider& lr_scheduler);

// Local. On the main process, names in one warning what the user has written otherwise than for the job that saved: of
// task and model (dump_hparams), such as a rope_base, which no tensor shows, and of TrainingJob::written. A run, its
// number of steps and the mesh are expected to differ.
void warn_of_other_settings(const DistContext& context, const SavedCheckpoint& saved, const nlohmann::json& hparams,
                            const nlohmann::json& written);

// Local. The weights of a checkpoint of a job, for another job that begins with them.
LoadReport load_saved_model(Module& module, const SavedCheckpoint& saved, const LoadOptions& options);

// Collective. The optimiser's state, in place, the position of the learning-rate schedule, and metrics. JobSchedule,
// data and model have got theirs already.
void load(const SavedCheckpoint& saved, TrainingJob& job);

// A value of CheckpointState::values. StateError, naming the folder, if it is not there.
[[nodiscard]] const nlohmann::ordered_json& value_of(const SavedCheckpoint& saved, const char* name);

// What the tasks of the data-parallel ranks saved; empty if that is nothing.
[[nodiscard]] std::vector<nlohmann::json> task_states(const SavedCheckpoint& saved);

// Local. The tensors of a job that its checkpoints hold: "model.<name>", and "optimizer.<entry>" for those of
// Optimizer::state_dict(). `trainable_only`: no frozen parameters.
[[nodiscard]] std::map<std::string, DTensor> tensors_of(const Module& module, const Optimizer& optimizer,
                                                        bool trainable_only = false);
inline constexpr const char* kModelPrefix = "model.";
// Local. The names among them that are persistent buffers.
[[nodiscard]] std::set<std::string> buffers_of(const Module& module);

}  // namespace d9d
