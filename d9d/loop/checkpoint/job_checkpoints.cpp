#include "d9d/loop/checkpoint/job_checkpoints.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/config/json_text.h"
#include "d9d/base/config/record_json.h"
#include "d9d/core/collectives/agreed.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checkpoint/job_state.h"
#include "d9d/loop/checks/rank_consistency.h"
#include "d9d/loop/task/trainable_parameters.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/write_model_state.h"
#include "d9d/peft/adapted_model.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWrittenBy = "written_by";  // marks a config.json as one that may be replaced

}  // namespace

bool saves_checkpoints(const CheckpointingConfig& config) {
  return !(config.period_steps == StepActionPeriod{StepActionMode::kDisable});
}

std::unique_ptr<FolderLock> prepare_saves(const DistContext& context, const CheckpointingConfig& config) {
  if (!saves_checkpoints(config)) return nullptr;
  const CheckpointDirectory directory(config.save_dir, context.mesh(MeshDomain::kBatch));
  return with_error_place("checkpointing.save_dir", [&] { return directory.prepare(); });
}

void write_configuration(const DistContext& context, const TrainerConfig& config, const nlohmann::json& parts) {
  if (!saves_checkpoints(config.checkpointing) || !context.is_main_process()) return;
  nlohmann::ordered_json all = {{kWrittenBy, "a training job of d9d"},
                                {"mesh", write_record(context.mesh_parameters())},
                                {"trainer", write_record(config)}};
  for (const auto& [name, settings] : parts.items()) all[name] = settings;
  // No other job writes into the folder, so a killed job leaves at most this one file, which the next start replaces.
  const fs::path file = config.checkpointing.save_dir / "config.json", unfinished = file.string() + ".tmp";
  if (fs::exists(file)) {
    std::ifstream present(file);
    const auto json = nlohmann::json::parse(present, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains(kWrittenBy)) {
      context.log().warning("does not write the configuration of the job: ", file.string(), " is another file");
      return;
    }
  }
  std::ofstream stream(unfinished);
  stream << all.dump(2) << '\n';
  stream.close();
  std::error_code error;
  if (stream) fs::rename(unfinished, file, error);
  D9D_CHECK(stream && !error, IoError, "[loop::checkpoints] expected to write ", file.string(),
            ", got an error. Check the space on the disk and the folder's permissions.");
}

std::optional<SavedCheckpoint> newest_checkpoint(const DistContext& context, const CheckpointingConfig& config) {
  const CheckpointDirectory directory(config.save_dir, context.mesh(MeshDomain::kBatch));
  if (!saves_checkpoints(config)) {
    if (context.is_main_process() && !directory.complete().empty()) {
      context.log().warning("begins anew, since checkpointing.period_steps is \"disable\": ",
                            directory.complete().rbegin()->second.string(), " is not read");
    }
    return std::nullopt;
  }
  if (context.is_main_process()) {
    for (const auto& [step, path] : directory.others()) {
      context.log().warning("[checkpoint] ", path.string(), " is no checkpoint of this library: it is not read");
    }
  }
  return directory.newest();
}

void check_names_of_saves(const DistContext& context, const CheckpointingConfig& config, const JobSchedule& schedule) {
  if (!saves_checkpoints(config)) return;
  const DeviceMesh job = context.mesh(MeshDomain::kBatch);
  on_first_rank(job, [&] {
    const auto others = CheckpointDirectory(config.save_dir, job).others();
    const auto next = others.upper_bound(schedule.current_step());
    D9D_CHECK(next == others.end() || next->first > schedule.total_steps(), IoError,
              "[loop::checkpoints] expected no other folder or file with the name of a save of this job, got ",
              next->second.string(), " without a manifest.json, and steps ", schedule.current_step() + 1, " to ",
              schedule.total_steps(), " to save. Move it away, or set another trainer.checkpointing.save_dir.");
  });
}

TrainerConfig with_found_source(const DistContext& context, const TrainerConfig& config,
                                const std::optional<SavedCheckpoint>& resumed, bool has_reference) {
  const ModelStageFactoryConfig& factory = config.model_stage_factory;
  const bool is_read = !resumed || factory.checkpoint_only_trainable_parameters || has_reference;
  if (!factory.source_checkpoint || !is_read) return config;
  const DeviceMesh job = context.mesh(MeshDomain::kBatch);
  nlohmann::json found;
  on_first_rank(job, [&] {
    with_error_place("in model_stage_factory.source_checkpoint", [&] {
      std::error_code error;
      fs::path folder = fs::canonical(*factory.source_checkpoint, error);
      if (error) folder = *factory.source_checkpoint;  // the code that reads the folder reports the error
      const auto before = resumed ? source_of(*resumed) : std::nullopt;
      if (before && before->parent_path() == folder && checkpoint_at(*before)) {
        folder = *before;
      } else if (const auto newest = checkpoint_at(folder)) {
        folder = newest->folder();
      }
      found = folder.string();
    });
  });
  TrainerConfig result = config;
  result.model_stage_factory.source_checkpoint = all_gather_object(found, job).front().get<std::string>();
  return result;
}

void check_optimizer_state(const DistContext& context, const Module& module, const Optimizer& optimizer) {
  std::set<std::string> without;
  for (const NamedParameter& parameter : trainable_parameters(module).parameters) without.insert(parameter.name);
  const std::set<std::string> parameters = without;
  const auto first = optimizer.state_dict(), second = optimizer.state_dict();
  std::vector<std::string> foreign;
  for (const auto& [entry, tensor] : first) {
    const auto again = second.find(entry);
    const bool is_alias =
        again != second.end() && again->second.local.const_data_ptr() == tensor.local.const_data_ptr();
    D9D_CHECK(is_alias, StateError, "[loop::checkpoints] expected the optimiser's own tensors in state_dict(), got a ",
              "new one as '", entry, "' at each call: a checkpoint is read into what it returns. Return the tensor ",
              "itself, not a clone.");
    const std::string parameter = entry.substr(0, entry.rfind('.'));
    without.erase(parameter);
    if (!parameters.contains(parameter) && tensor.local.numel() > 1) foreign.push_back(entry);
  }
  if (!context.is_main_process() || parameters.empty()) return;
  constexpr const char* kAdvice =
      ": a resumed job starts without it. Return all state in state_dict(), as <parameter>.<what it is>.";
  const Logger& log = context.log();
  if (first.empty()) {
    log.warning("checkpoints hold no state of the optimiser, since its state_dict() is empty. If it has some", kAdvice);
  } else if (!foreign.empty()) {
    log.warning("the optimiser's state '", foreign.front(), "' is named after no parameter. If it is one of several",
                kAdvice);
  } else if (!without.empty() && without.size() < parameters.size()) {
    log.warning("checkpoints hold no state of the optimiser for ", *without.begin(),
                ", but some for other parameters. "
                "If it has some",
                kAdvice);
  }
}

nlohmann::ordered_json written_settings(const TrainerConfig& given, const OptimizerProvider& optimizer,
                                        const LearningRateSchedulerProvider& lr_scheduler, const nlohmann::json& data) {
  nlohmann::ordered_json all = {{"trainer", write_record(given)},
                                {"optimizer", optimizer.dump_hparams()},
                                {"lr_scheduler", lr_scheduler.dump_hparams()}};
  all.update(nlohmann::ordered_json(data));
  return all;
}

namespace {

// "optimizer.lr 0.1 -> 0.2; ...", of parts that both have.
std::string changes(const nlohmann::json& before, const nlohmann::json& now) {
  std::string list;
  for (const auto& [part, settings] : now.items()) {
    if (!before.contains(part)) continue;  // older checkpoints lack some
    nlohmann::json old_keys = nlohmann::json{{part, before.at(part)}}.flatten();
    nlohmann::json new_keys = nlohmann::json{{part, settings}}.flatten();
    nlohmann::json all_keys = old_keys;
    all_keys.update(new_keys);
    for (const auto& [key, value] : all_keys.items()) {
      if (key.starts_with("/trainer/run/")) continue;
      const nlohmann::json& old_value = old_keys[key];
      const nlohmann::json& new_value = new_keys[key];
      if (old_value == new_value) continue;
      list += cat(list.empty() ? " " : "; ", dotted_key(key), " ", json_excerpt(old_value), " -> ",
                  json_excerpt(new_value));
    }
  }
  return list;
}

// hparams_of() the model of the saved job; null if it said none.
nlohmann::json model_hparams_of(const SavedCheckpoint& saved) {
  return value_of(saved, "hparams").value("model", nlohmann::ordered_json());
}

}  // namespace

void warn_of_other_settings(const DistContext& context, const SavedCheckpoint& saved, const nlohmann::json& hparams,
                            const nlohmann::json& written) {
  if (!context.is_main_process()) return;
  nlohmann::json before = value_of(saved, "hparams"), now = hparams;
  before.update(nlohmann::json(saved.values().value("written", nlohmann::ordered_json::object())));
  now.update(written);
  const std::string list = changes(before, now);
  if (!list.empty()) context.log().warning("settings that are not those of ", saved.folder().string(), ":", list);
}

void check_adapter_scale(const SavedCheckpoint& saved, const nlohmann::json& model) {
  const nlohmann::json before = model_hparams_of(saved);
  if (!before.is_object() || !model.is_object() || !model.contains("adapters")) return;
  const nlohmann::json now = nlohmann::json{{"adapters", model["adapters"]}}.flatten();
  for (const auto& [key, value] : now.items()) {
    if (!key.ends_with("/alpha") && !key.ends_with("/use_rslora")) continue;
    const nlohmann::json::json_pointer at(key);
    D9D_CHECK(!before.contains(at) || before[at] == value, ConfigError, "[loop::checkpoints] expected model.",
              dotted_key(key), " = ", json_excerpt(before.value(at, nlohmann::json())), " of the saved job ",
              saved.folder().string(), ", got ", json_excerpt(value),
              ", which scales what its adapters have learned. Keep it, or begin anew in another save_dir.");
  }
}

void warn_of_other_adapters(const DistContext& context, const SavedCheckpoint& saved, const nlohmann::json& model) {
  if (!model.contains("adapters")) return;
  const nlohmann::json before = model_hparams_of(saved);
  if (!before.is_object() || !before.contains("adapters") || before["adapters"].is_null()) return;
  const std::string list = changes({{"adapters", before["adapters"]}}, {{"adapters", model["adapters"]}});
  if (!list.empty()) {
    context.log().warning("begins with adapters of ", saved.folder().string(), " that had other settings:", list);
  }
}

namespace {

void check_has_frozen(const Module& module, const SavedCheckpoint& saved, const NamedTensors& tensors) {
  for (const AdaptedModule& adapted : adapters_of(module).modules) {
    D9D_CHECK(!tensors.find(adapted.a[0]) || tensors.find(adapted.weights[0].stored), ConfigError,
              "[loop::model_stage] expected a checkpoint of a whole model, got the adapter of '", adapted.name,
              "' without its weight in ", saved.folder().string(),
              ": its job saves what it trains alone. Begin with the model that its job began with, and with "
              "source_adapters, which d9d_convert --adapters peft makes of the checkpoint.");
  }
}

}  // namespace

LoadReport load_saved_model(Module& module, const SavedCheckpoint& saved, const LoadOptions& options) {
  const NamedTensors tensors = saved.tensors(kModelPrefix);
  check_has_frozen(module, saved, tensors);
  std::set<std::string> own;
  for (const auto& [name, tensor] : state_of(module)) own.insert(name);
  return load_model_state(module, mapper::identities(own), tensors, options);
}

}  // namespace d9d
