#include "d9d/loop/checkpoint/job_checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <ranges>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/core/collectives/agreed.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checks/rank_consistency.h"
#include "d9d/loop/task/trainable_parameters.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/write_model_state.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;

const std::string kModel = kModelPrefix, kOptimizer = "optimizer.";  // prefixes of names
constexpr const char* kTrainableOnly = "checkpoint_only_trainable_parameters";

std::map<std::string, DTensor> tensors_of_model(const Module& module, bool trainable_only) {
  std::map<std::string, DTensor> tensors;
  for (auto& [name, tensor] : state_of(module)) tensors.emplace(kModel + name, std::move(tensor));
  if (!trainable_only) return tensors;
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (!parameter->requires_grad()) tensors.erase(kModel + name);
  }
  return tensors;
}

// Throws StateError for an entry without a layout that has the shape of this rank's part of the parameter: as a whole
// tensor, it would be saved by one rank and loaded on all.
void check_layout(const std::string& entry, const DTensor& tensor,
                  const std::map<std::string, ParameterPtr>& parameters) {
  const auto found = parameters.find(entry.substr(0, entry.rfind('.')));
  if (found == parameters.end() || !tensor.mesh.axes().empty() || tensor.local.numel() == 1) return;
  const at::IntArrayRef held = found->second->stored().sizes();
  D9D_CHECK(held == found->second->global_shape() || tensor.local.sizes() != held, StateError,
            "[loop::checkpoints] expected the optimiser's state '", entry,
            "' with the layout of its parameter, of which ", "a rank keeps ", held,
            ", got it as whole on every rank. Return NamedParameter::laid_out() in state_dict(), of ",
            "the parameters that build_optimizer() gets.");
}

std::map<std::string, DTensor> tensors_of_optimizer(const Module& module, const Optimizer& optimizer) {
  std::map<std::string, ParameterPtr> parameters;
  for (const auto& [name, parameter] : module.named_parameters()) parameters.emplace(name, parameter);
  std::map<std::string, DTensor> tensors;
  for (auto& [name, tensor] : optimizer.state_dict()) {
    check_layout(name, tensor, parameters);
    tensors.emplace(kOptimizer + name, std::move(tensor));
  }
  return tensors;
}

// Collective. Whether any stage of the pipeline has frozen parameters.
bool has_frozen_parameters(const Module& module, const DistContext& context) {
  const auto parameters = module.named_parameters();
  const bool has = std::ranges::any_of(parameters, [](const auto& each) { return !each.second->requires_grad(); });
  const auto all = all_gather_object(has, context.mesh(MeshDomain::kRegular).slice({"pp"}));
  return std::ranges::find(all, nlohmann::json(true)) != all.end();
}

// The source_checkpoint of the job that saved, as a resolved folder; none if it had none.
std::optional<fs::path> source_of(const SavedCheckpoint& saved) {
  const auto& source = value_of(saved, "trainer").at("model_stage_factory").at("source_checkpoint");
  return source.is_null() ? std::nullopt : std::optional<fs::path>(source.get<std::string>());
}

// Throws ConfigError unless frozen parameters, which are not in the checkpoint, have the same origin as in the job that
// saved.
void check_frozen_source(const SavedCheckpoint& saved, const TrainerConfig& config) {
  constexpr const char* kAdvice = ": frozen parameters are not in it. Continue with the same.";
  const ModelStageFactoryConfig& factory = config.model_stage_factory;
  const auto source = source_of(saved);
  const auto text = [](const std::optional<fs::path>& path) { return path ? path->string() : "null"; };
  std::error_code ignored;  // links to one folder are equivalent
  const bool is_same = source && factory.source_checkpoint
                           ? fs::equivalent(*source, *factory.source_checkpoint, ignored)
                           : source == factory.source_checkpoint;
  D9D_CHECK(is_same, ConfigError,
            "[loop::checkpoints] expected trainer.model_stage_factory.source_checkpoint = ", text(source),
            ", with which ", saved.folder().string(), " was saved, got ", text(factory.source_checkpoint), kAdvice);
  const bool come_from_seed = !source || factory.source_may_lack.has_value();
  const auto& seed = value_of(saved, "base_seed");
  D9D_CHECK(!come_from_seed || seed == config.determinism.base_seed, ConfigError,
            "[loop::checkpoints] expected trainer.determinism.base_seed = ", seed.dump(), ", with which ",
            saved.folder().string(), " was saved, got ", config.determinism.base_seed, kAdvice);
}

// The values of the ranks that the checkpoint lists as `list`.
std::vector<nlohmann::ordered_json> values_of_ranks(const SavedCheckpoint& saved, const char* list) {
  std::vector<nlohmann::ordered_json> values;
  for (const auto rank : value_of(saved, list).get<std::vector<std::size_t>>()) {
    D9D_CHECK(rank < saved.rank_values().size(), IoError, "[loop::checkpoints] expected values of rank ", rank, " in ",
              saved.folder().string(), ", got none. Continue from another checkpoint.");
    values.push_back(saved.rank_values()[rank]);
  }
  return values;
}

// The sums of metrics over all ranks since they were last logged, by name.
std::map<std::string, at::Tensor> metric_states(const SavedCheckpoint& saved, const char* kind) {
  std::map<std::string, at::Tensor> states;
  for (const auto& of_rank : values_of_ranks(saved, "metric_ranks")) {
    for (const auto& [name, state] : of_rank.at(kind).items()) {
      const at::Tensor sums = at::tensor(state.at("sums").get<std::vector<double>>(), at::kDouble)
                                  .view(state.at("shape").get<std::vector<std::int64_t>>());
      const auto [found, is_first] = states.try_emplace(name, sums);
      if (!is_first) found->second = found->second + sums;
    }
  }
  return states;
}

void load_metrics(const std::map<std::string, at::Tensor>& states, const DistContext& context,
                  const MetricMap& metrics) {
  if (!context.is_main_process()) return;  // the states are sums over ranks: one rank gets all
  for (const auto& [name, sums] : states) {
    const auto metric = metrics.find(name);
    if (metric != metrics.end()) metric->second->load_state(sums.to(context.device()));
  }
}

}  // namespace

const nlohmann::ordered_json& value_of(const SavedCheckpoint& saved, const char* name) {
  const auto found = saved.values().find(name);
  D9D_CHECK(found != saved.values().end(), StateError, "[loop::checkpoints] expected '", name, "' in ",
            saved.folder().string(), ", got none. Continue with the program that wrote it.");
  return *found;
}

std::vector<nlohmann::json> task_states(const SavedCheckpoint& saved) {
  std::vector<nlohmann::json> states;
  for (const auto& of_rank : values_of_ranks(saved, "task_ranks")) states.emplace_back(of_rank.at("task"));
  const bool are_null = std::ranges::all_of(states, [](const nlohmann::json& state) { return state.is_null(); });
  return are_null ? std::vector<nlohmann::json>() : states;
}

std::map<std::string, DTensor> tensors_of(const Module& module, const Optimizer& optimizer, bool trainable_only) {
  std::map<std::string, DTensor> tensors = tensors_of_model(module, trainable_only);
  tensors.merge(tensors_of_optimizer(module, optimizer));
  return tensors;
}

std::set<std::string> buffers_of(const Module& module) {
  std::set<std::string> names;
  for (const auto& [name, buffer] : module.named_buffers()) {
    if (buffer->is_persistent) names.insert(kModel + name);
  }
  return names;
}

bool saves_checkpoints(const CheckpointingConfig& config) {
  return !(config.period_steps == StepActionPeriod{StepActionMode::kDisable});
}

std::unique_ptr<FolderLock> prepare_saves(const DistContext& context, const CheckpointingConfig& config) {
  if (!saves_checkpoints(config)) return nullptr;
  const CheckpointDirectory directory(config.save_dir, context.mesh(MeshDomain::kBatch));
  return with_error_place("trainer.checkpointing.save_dir", [&] { return directory.prepare(); });
}

std::optional<SavedCheckpoint> newest_checkpoint(const DistContext& context, const CheckpointingConfig& config) {
  const CheckpointDirectory directory(config.save_dir, context.mesh(MeshDomain::kBatch));
  if (!saves_checkpoints(config)) {
    if (context.is_main_process() && !directory.complete().empty()) {
      context.log().warning("begins anew, since trainer.checkpointing.period_steps is \"disable\": ",
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
                                const std::optional<SavedCheckpoint>& resumed) {
  const ModelStageFactoryConfig& factory = config.model_stage_factory;
  if (!factory.source_checkpoint || (resumed && !factory.checkpoint_only_trainable_parameters)) return config;
  const DeviceMesh job = context.mesh(MeshDomain::kBatch);
  nlohmann::json found;
  on_first_rank(job, [&] {
    with_error_place("in trainer.model_stage_factory.source_checkpoint", [&] {
      std::error_code error;
      fs::path folder = fs::canonical(*factory.source_checkpoint, error);
      if (error) folder = *factory.source_checkpoint;  // whoever reads it reports the error
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
      ": a job that continues begins without it. Return all state in state_dict(), as <parameter>.<what it is>.";
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

void load_model(const SavedCheckpoint& saved, const DistContext& context, const Module& module,
                const TrainerConfig& config) {
  const bool trainable_only = config.model_stage_factory.checkpoint_only_trainable_parameters;
  const auto& saved_with = value_of(saved, kTrainableOnly);
  D9D_CHECK(saved_with == trainable_only, ConfigError, "[loop::checkpoints] expected trainer.model_stage_factory.",
            kTrainableOnly, " = ", saved_with.dump(), ", with which ", saved.folder().string(), " was saved, got ",
            trainable_only ? "true" : "false", ". Continue with the same, or begin in another folder.");
  if (trainable_only && has_frozen_parameters(module, context)) check_frozen_source(saved, config);
  saved.load({.tensors = tensors_of_model(module, trainable_only)}, context.mesh(MeshDomain::kBatch), kModel);
}

nlohmann::ordered_json written_settings(const TrainerConfig& given, const OptimizerProvider& optimizer,
                                        const LearningRateSchedulerProvider& lr_scheduler) {
  return {{"trainer", write_record(given)},
          {"optimizer", optimizer.dump_hparams()},
          {"lr_scheduler", lr_scheduler.dump_hparams()}};
}

void warn_of_other_settings(const DistContext& context, const SavedCheckpoint& saved, const nlohmann::json& hparams,
                            const nlohmann::json& written) {
  if (!context.is_main_process()) return;
  nlohmann::json before = value_of(saved, "hparams"), now = hparams;
  const auto found = saved.values().find("written");  // older checkpoints lack it
  if (found != saved.values().end()) {
    before.update(nlohmann::json(*found));
    now.update(written);
    for (nlohmann::json* const each : {&before, &now}) {
      each->at("trainer").erase("run");
      each->at("trainer").erase("schedule");
    }
  }
  const auto text = [](const nlohmann::json& all, const nlohmann::json::json_pointer& key) {
    return all.contains(key) ? all.at(key).dump() : "none";
  };
  std::string list;
  for (const auto& change : nlohmann::json::diff(before, now)) {
    const nlohmann::json::json_pointer key(change.at("path").get<std::string>());
    list += cat(list.empty() ? "" : "; ", dotted_key(key.to_string()), " is ", text(now, key), ", and was ",
                text(before, key));
  }
  if (list.empty()) return;
  context.log().warning(list, " in ", saved.folder().string(), ": the job goes on with what it is now");
}

LoadReport load_saved_model(Module& module, const SavedCheckpoint& saved, const LoadOptions& options) {
  const NamedTensors tensors = saved.tensors(kModel);
  std::set<std::string> own;
  for (const auto& [name, tensor] : state_of(module)) own.insert(name);
  return load_model_state(module, mapper::identities(own), tensors, options);
}

void load(const SavedCheckpoint& saved, TrainingJob& job) {
  saved.load({.tensors = tensors_of_optimizer(*job.module, job.optimizer)}, job.context.mesh(MeshDomain::kBatch),
             kOptimizer);
  job.lr_scheduler.load_state(value_of(saved, "lr_scheduler"));
  load_metrics(metric_states(saved, "metrics"), job.context, job.metrics);
  const std::map<std::string, at::Tensor> loss_means = metric_states(saved, "loss_means");
  for (const auto& [name, sums] : loss_means) (*job.loss_means)[name] = std::make_shared<MeanMetric>();
  load_metrics(loss_means, job.context, *job.loss_means);
  const std::uint64_t seed = job.config.determinism.base_seed;
  if (value_of(saved, "base_seed") != seed && job.context.is_main_process()) {
    job.context.log().warning("trainer.determinism.base_seed is ", seed, ", and was ",
                              value_of(saved, "base_seed").dump(), " in ", saved.folder().string(),
                              ": random layers draw other numbers from here on");
  }
  job.tracker_state = value_of(saved, "tracker");
  const auto num_updates = saved.values().find("num_updates");  // older checkpoints lack it
  job.updates.load(num_updates == saved.values().end() ? saved.step() : num_updates->get<std::int64_t>());
  if (job.context.is_main_process()) {
    job.context.log().info("continues after step ", saved.step(), " from ", saved.folder().string());
  }
}

}  // namespace d9d
