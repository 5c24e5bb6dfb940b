// Writes the trained model of a job.
#pragma once

#include <filesystem>

#include "d9d/loop/component/training_job.h"
#include "d9d/loop/control/providers.h"

namespace d9d {

// Collective: write_model_state(). On the main process, warns of tensors of the model that the mapper does not take.
void export_model(const TrainingJob& job, const ModelExport& model, const std::filesystem::path& folder);

}  // namespace d9d
