#include "d9d/loop/checkpoint/export_model.h"

#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/checkpoint/shared_values.h"
#include "d9d/core/collectives/agreed.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/loop/checkpoint/job_checkpoints.h"
#include "d9d/loop/checks/rank_consistency.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/write_model_state.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;

// Collective. Throws ConfigError unless the mappers of all ranks of a pipeline have the same inputs and outputs: the
// ranks write parts of one folder.
void check_same_mapper(const TrainingJob& job, const StateMapper& mapper) {
  const nlohmann::json names = {mapper.inputs(), mapper.outputs()};
  const auto all = all_gather_object(names, job.context.mesh(MeshDomain::kRegular).slice({"pp"}));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    D9D_CHECK(all[rank] == all[0], ConfigError,
              "[loop::export] expected a mapper of the whole model on all ranks of a pipeline, got one that makes ",
              all[0][1].size(), " tensors on its rank 0 and one that makes ", all[rank][1].size(),
              ", or others, on its rank ", rank,
              ". Return the mapper of the whole model in ModelProvider::prepare_export.");
  }
}

std::map<std::string, DTensor> exported_state(const TrainingJob& job) {
  std::map<std::string, DTensor> state = state_of(*job.module);
  if (!job.ema || job.config.ema->exported == ExportedWeights::kTrained) return state;
  for (auto& [name, tensor] : job.ema->rounded()) {
    const auto found = state.find(name);
    D9D_CHECK(found != state.end(), StateError, "[loop::export] expected the averaged parameter '", name,
              "' in the model, got a model without it: merge_peft() merges trained adapters, not their averages. Set "
              "trainer.ema.export = \"trained\".");
    found->second = std::move(tensor);
  }
  return state;
}

// Files and folders of a job besides its export, each with the configuration key that names it.
using Places = std::vector<std::pair<std::string, fs::path>>;

void add_places(const TrackerConfig& config, const std::string& key, Places& places) {
  if (const auto* jsonl = std::get_if<JsonlTrackerConfig>(&config)) places.emplace_back(key + ".path", jsonl->path);
  if (const auto* board = std::get_if<TensorboardTrackerConfig>(&config))
    places.emplace_back(key + ".log_dir", board->log_dir);
  if (const auto* multi = std::get_if<MultiTrackerConfig>(&config)) {
    for (std::size_t i = 0; i < multi->trackers.size(); ++i) {
      std::visit([&](const auto& one) { add_places(one, cat(key, ".trackers[", i, "]"), places); }, multi->trackers[i]);
    }
  }
}

bool is_within(const fs::path& inner, const fs::path& outer) {
  const auto whole = [](const fs::path& path) {
    std::error_code error;  // ignored: the path may not exist
    const fs::path place = fs::weakly_canonical(fs::absolute(path, error), error);
    return place.has_filename() ? place : place.parent_path();
  };
  if (inner.empty() || outer.empty()) return false;
  const fs::path rest = whole(inner).lexically_relative(whole(outer));
  return !rest.empty() && *rest.begin() != "..";
}

}  // namespace

void check_export_place(const fs::path& folder, const TrainerConfig& config) {
  Places places;
  add_places(config.logging.tracker, "trainer.logging.tracker", places);
  if (saves_checkpoints(config.checkpointing)) {
    places.emplace_back("trainer.checkpointing.save_dir", config.checkpointing.save_dir);
  }
  if (config.exports) places.emplace_back("trainer.exports.folder", config.exports->folder);
  const ModelStageFactoryConfig& model = config.model_stage_factory;
  for (const auto& [key, source] :
       {std::pair("source_checkpoint", model.source_checkpoint), std::pair("source_adapters", model.source_adapters)}) {
    if (source) places.emplace_back(cat("trainer.model_stage_factory.", key), *source);
  }
  for (const auto& [key, place] : places) {
    D9D_CHECK(!is_within(place, folder), ConfigError,
              "[loop::export] expected a folder of its own for the export, got '", folder.string(), "', in which ", key,
              " = '", place.string(), "' lies. Export to another folder.");
  }
}

std::unique_ptr<FolderLock> prepare_export(const DistContext& context, const std::filesystem::path& folder,
                                           const std::map<std::string, std::string>& files,
                                           const TrainerConfig& config) {
  check_equal_export(context, folder);
  check_export_place(folder, config);
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
  const std::map<std::string, DTensor> state = exported_state(job);
  std::set<std::string> buffers;
  for (const auto& [name, buffer] : job.module->named_buffers()) buffers.insert(name);
  const auto copies = copies_of_buffers(*job.module, job.stages, "");
  check_shared_values({.tensors = state, .buffers = buffers, .copies = copies}, ranks);
  const auto unused =
      write_model_state(folder, model.mapper, state, ranks, {.files = model.files, .only_file = model.only_file});
  if (!job.context.is_main_process()) return;
  for (const std::string& warning : model.warnings) job.context.log().warning(folder.string(), ": ", warning);
  if (!model.is_whole) return;
  for (const std::string& name : unused) job.context.log().warning("did not export ", name);
}

}  // namespace d9d
