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

// Collective. Before training, throws what an export would throw before it writes, and makes the folder the job's own
// until the result, on the main process, is destroyed. Throws IoError if another job has it, ConfigError if this one
// writes other files into it, by its trackers or as checkpoints. Warns of the files of another tokenizer in the folder
// that the export removes.
[[nodiscard]] std::unique_ptr<FolderLock> prepare_export(const DistContext& context,
                                                         const std::filesystem::path& folder,
                                                         const std::map<std::string, std::string>& files,
                                                         const TrainerConfig& config);

// Collective: write_model_state(). Throws UnequalRanksError if ranks hold different values of what is exported once. On
// the main process, warns of tensors of the model that the mapper does not take.
void export_model(const TrainingJob& job, const ModelExport& model, const std::filesystem::path& folder);

}  // namespace d9d
