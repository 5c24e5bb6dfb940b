#include "d9d/loop/component/job_checkpoints.h"

#include <algorithm>
#include <ranges>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/error/error_place.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/write_model_state.h"

namespace d9d {
namespace {

const std::string kModel = "model.", kOptimizer = "optimizer.";  // what names begin with
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

std::map<std::string, DTensor> tensors_of_optimizer(const Optimizer& optimizer) {
  std::map<std::string, DTensor> tensors;
  for (auto& [name, tensor] : optimizer.state_dict()) tensors.emplace(kOptimizer + name, std::move(tensor));
  return tensors;
}

// The ranks whose values a checkpoint names by `list`.
std::vector<nlohmann::ordered_json> values_of_ranks(const SavedCheckpoint& saved, const char* list) {
  std::vector<nlohmann::ordered_json> values;
  for (const auto rank : value_of(saved, list).get<std::vector<std::size_t>>()) {
    D9D_CHECK(rank < saved.rank_values().size(), IoError, "[loop::checkpoints] expected values of rank ", rank, " in ",
              saved.folder().string(), ", got none. Continue from another checkpoint.");
    values.push_back(saved.rank_values()[rank]);
  }
  return values;
}

// By name, what the metrics of all ranks came to since they were logged.
nlohmann::ordered_json metric_states(const SavedCheckpoint& saved, const char* kind) {
  nlohmann::ordered_json states = nlohmann::ordered_json::object();
  for (const auto& of_rank : values_of_ranks(saved, "metric_ranks")) {
    for (const auto& [name, numbers] : of_rank.at(kind).items()) {
      auto& sums = states[name];
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (i < sums.size()) {
          sums[i] = sums[i].get<double>() + numbers[i].get<double>();
        } else {
          sums.push_back(numbers[i]);
        }
      }
    }
  }
  return states;
}

void load_metrics(const nlohmann::ordered_json& states, const DistContext& context, const MetricMap& metrics) {
  if (!context.is_main_process()) return;  // sums over ranks: one rank has them all
  for (const auto& [name, numbers] : states.items()) {
    const auto metric = metrics.find(name);
    if (metric == metrics.end()) continue;
    const at::Tensor sums = at::tensor(numbers.get<std::vector<double>>(), at::kDouble).to(context.device());
    metric->second->load_state(numbers.size() == 1 ? sums[0] : sums);
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
  tensors.merge(tensors_of_optimizer(optimizer));
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

std::optional<SavedCheckpoint> newest_checkpoint(const DistContext& context, const CheckpointingConfig& config) {
  if (!saves_checkpoints(config)) return std::nullopt;
  const CheckpointDirectory directory(config.save_dir, context.mesh(MeshDomain::kBatch));
  with_error_place("trainer.checkpointing.save_dir", [&] { directory.prepare(); });
  if (context.is_main_process()) {
    for (const auto& path : directory.others()) {
      context.log().warning("[checkpoint] ", path.string(), " is no checkpoint of this library: it is not read");
    }
  }
  return directory.newest();
}

void load_model(const SavedCheckpoint& saved, const DistContext& context, const Module& module, bool trainable_only) {
  const auto& saved_with = value_of(saved, kTrainableOnly);
  D9D_CHECK(saved_with == trainable_only, ConfigError, "[loop::checkpoints] expected trainer.model_stage_factory.",
            kTrainableOnly, " = ", saved_with.dump(), ", with which ", saved.folder().string(), " was saved, got ",
            trainable_only ? "true" : "false", ". Continue with the same, or begin in another folder.");
  saved.load({.tensors = tensors_of_model(module, trainable_only)}, context.mesh(MeshDomain::kBatch), kModel);
}

LoadReport load_saved_model(Module& module, const SavedCheckpoint& saved, const LoadOptions& options) {
  const NamedTensors tensors = saved.tensors(kModel);
  std::set<std::string> own;
  for (const auto& [name, tensor] : state_of(module)) own.insert(name);
  return load_model_state(module, mapper::identities(own), tensors, options);
}

void load(const SavedCheckpoint& saved, TrainingJob& job) {
  saved.load({.tensors = tensors_of_optimizer(job.optimizer)}, job.context.mesh(MeshDomain::kBatch), kOptimizer);
  job.lr_scheduler.load_state(value_of(saved, "lr_scheduler"));
  load_metrics(metric_states(saved, "metrics"), job.context, job.metrics);
  const nlohmann::ordered_json loss_means = metric_states(saved, "loss_means");
  for (const auto& [name, numbers] : loss_means.items()) (*job.loss_means)[name] = std::make_shared<MeanMetric>();
  load_metrics(loss_means, job.context, *job.loss_means);
  const std::uint64_t seed = job.config.determinism.base_seed;
  if (value_of(saved, "base_seed") != seed && job.context.is_main_process()) {
    job.context.log().warning("trainer.determinism.base_seed is ", seed, ", and was ",
                              value_of(saved, "base_seed").dump(), " in ", saved.folder().string(),
                              ": random layers draw other numbers from here on");
  }
  job.tracker_state = value_of(saved, "tracker");
  if (job.context.is_main_process()) {
    job.context.log().info("continues after step ", saved.step(), " from ", saved.folder().string());
  }
}

}  // namespace d9d
