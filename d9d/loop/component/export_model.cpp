#include "d9d/loop/component/export_model.h"

#include "d9d/model_state/write_model_state.h"

namespace d9d {

void export_model(const TrainingJob& job, const ModelExport& model, const std::filesystem::path& folder) {
  const DeviceMesh ranks = job.context.mesh(MeshDomain::kBatch);
  const auto unused = write_model_state(folder, model.mapper, state_of(*job.module), ranks, {.files = model.files});
  if (!job.context.is_main_process()) return;
  for (const std::string& name : unused) job.context.log().warning("did not export ", name);
}

}  // namespace d9d
