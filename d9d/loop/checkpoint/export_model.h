// Writes the trained model of a job.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "d9d/base/io/folder_lock.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/loop/task/providers.h"

namespace d9d {

// Collective. Called before training, to detect early what would make the export after it fail. Locks the folder for
// this job until the returned lock is destroyed; the lock is null except on the main process. Throws IoError if the
// folder cannot be written or another job has locked it, ConfigError as check_export_place(). Warns of tokenizer files
// in the folder that are not of this job, and which the export will remove.
[[nodiscard]] std::unique_ptr<FolderLock> prepare_export(const DistContext& context,
                                                         const std::filesystem::path& folder,
                                                         const std::map<std::string, std::string>& files,
                                                         const TrainerConfig& config);

// Local. Throws ConfigError if the job writes tracker files, checkpoints or the exports of trainer.exports into
// `folder`, which an export replaces, or if the job's source checkpoint or adapters lie there.
void check_export_place(const std::filesystem::path& folder, const TrainerConfig& config);

// Collective. Calls write_model_state(), with averages of the weights where trainer.ema.export says so. Throws
// UnequalRanksError if ranks hold different values of the same tensor. The main process warns of tensors of the
// model that the mapper does not use.
void export_model(const TrainingJob& job, const ModelExport& model, const std::filesystem::path& folder);

}  // namespace d9d
