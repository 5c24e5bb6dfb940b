#include "d9d/loop/component/export_model.h"

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/agreed.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/write_model_state.h"

namespace d9d {
namespace {

// Collective. The ranks of a pipeline write one folder, each what it has.
void check_same_mapper(const TrainingJob& job, const StateMapper& mapper) {
  const auto all =
      all_gather_object(nlohmann::json(mapper.outputs()), job.context.mesh(MeshDomain::kRegular).slice({"pp"}));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    D9D_CHECK(all[rank] == all[0], ConfigError,
              "[loop::export] expected a mapper of the whole model on all ranks of a pipeline, got one that makes ",
              all[0].size(), " tensors on its rank 0 and one that makes ", all[rank].size(),
              ", or others, on its rank ", rank,
              ". Return the mapper of the whole model in ModelProvider::prepare_export.");
  }
}

}  // namespace

std::unique_ptr<FolderLock> prepare_export(const DistContext& context, const std::filesystem::path& folder,
                                           const std::map<std::string, std::string>& files) {
  std::unique_ptr<FolderLock> lock;
  on_first_rank(context.mesh(MeshDomain::kBatch), [&] {
    lock = lock_huggingface_target(folder, files);
    for (const std::string& name : token_files_that_go(folder, files)) {
      context.log().warning("'", (folder / name).string(),
                            "' is not of this job, which has no tokenizer, and goes when ",
                            "the job exports: copy it, or name the tokenizer of the data's ids as sample.tokenizer");
    }
  });
  return lock;
}

void export_model(const TrainingJob& job, const ModelExport& model, const std::filesystem::path& folder) {
  check_same_mapper(job, model.mapper);
  const DeviceMesh ranks = job.context.mesh(MeshDomain::kBatch);
  const auto unused = write_model_state(folder, model.mapper, state_of(*job.module), ranks, {.files = model.files});
  if (!job.context.is_main_process()) return;
  for (const std::string& name : unused) job.context.log().warning("did not export ", name);
}

}  // namespace d9d
