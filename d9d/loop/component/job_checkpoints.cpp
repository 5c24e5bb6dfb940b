#include "d9d/loop/component/job_checkpoints.h"

#include <algorithm>
#include <chrono>
#include <ranges>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/error/error_place.h"
#include "d9d/model_state/write_model_state.h"

namespace d9d {
namespace {

const std::string kModel = "model.", kOptimizer = "optimizer.";  // what names begin with

// The parameter whose state an entry is: "<parameter>.<slot>". Null: none.
const Parameter* parameter_of(const std::string& entry, const std::map<std::string, ParameterPtr>& parameters) {
  const auto found = parameters.find(entry.substr(0, entry.rfind('.')));
  return found == parameters.end() ? nullptr : found->second.get();
}

DTensor state_of_entry(const std::string& entry, const at::Tensor& tensor, const Parameter* parameter) {
  if (parameter != nullptr && tensor.sizes() == parameter->stored().sizes()) {
    return {.local = tensor,
            .mesh = parameter->mesh(),
            .placements = parameter->placements(),
            .global_shape = parameter->global_shape()};
  }
  const bool is_whole = parameter == nullptr || parameter->stored().sizes() == parameter->global_shape();
  D9D_CHECK(is_whole || tensor.numel() == 1, StateError, "[loop::checkpoints] expected the optimiser's state '", entry,
            "' in the shape of what a rank keeps of the parameter, ", parameter->stored().sizes(),
            ", or one number, got ", tensor.sizes(),
            ". Its layout over the ranks is not known, so it cannot be saved.");
  return whole_dtensor(tensor);
}

std::map<std::string, DTensor> tensors_of_model(const Module& module) {
  std::map<std::string, DTensor> tensors;
  for (auto& [name, tensor] : state_of(module)) tensors.emplace(kModel + name, std::move(tensor));
  return tensors;
}

std::map<std::string, DTensor> tensors_of_optimizer(const Module& module, const Optimizer& optimizer) {
  std::map<std::string, ParameterPtr> parameters;
  for (const auto& [name, parameter] : module.named_parameters()) parameters.emplace(name, parameter);
  std::map<std::string, DTensor> tensors;
  for (const auto& [name, tensor] : optimizer.state_dict()) {
    tensors.emplace(kOptimizer + name, state_of_entry(name, tensor, parameter_of(name, parameters)));
  }
  return tensors;
}

// Of each data-parallel rank, in their order.
nlohmann::json states_of_ranks(const DistContext& context, const nlohmann::json& own) {
  const DeviceMesh ranks = context.mesh(MeshDomain::kBatch).slice({"dp"});
  return all_gather_object(own, ranks);
}

// By name, what the metrics of all ranks came to since they were logged.
nlohmann::ordered_json metric_states(const DistContext& context, const MetricMap& metrics) {
  const DeviceMesh ranks = context.mesh(MeshDomain::kBatch).slice({"pp", "dp", "cp"});
  nlohmann::ordered_json states = nlohmann::ordered_json::object();
  for (const auto& [name, metric] : metrics) {
    const at::Tensor own = metric->state();
    std::vector<double> numbers;
    if (own.defined()) {
      const at::Tensor on_host = own.detach().to(at::kCPU, at::kDouble).contiguous().view({-1});
      numbers.assign(on_host.const_data_ptr<double>(), on_host.const_data_ptr<double>() + on_host.numel());
    }
    std::vector<double> sums;
    for (const nlohmann::json& of_rank : all_gather_object(nlohmann::json(numbers), ranks)) {
      sums.resize(std::max(sums.size(), of_rank.size()));
      for (std::size_t i = 0; i < of_rank.size(); ++i) sums[i] += of_rank[i].get<double>();
    }
    if (!sums.empty()) states[name] = sums;
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
  for (const auto& state : value_of(saved, "task")) states.emplace_back(state);
  const bool are_null = std::ranges::all_of(states, [](const nlohmann::json& state) { return state.is_null(); });
  return are_null ? std::vector<nlohmann::json>() : states;
}

std::map<std::string, DTensor> tensors_of(const Module& module, const Optimizer& optimizer) {
  std::map<std::string, DTensor> tensors = tensors_of_model(module);
  tensors.merge(tensors_of_optimizer(module, optimizer));
  return tensors;
}

JobCheckpoints::JobCheckpoints(const DistContext& context, const CheckpointingConfig& config)
    : context_(context), config_(config), directory_(config.save_dir, context.mesh(MeshDomain::kBatch)) {}

std::optional<SavedCheckpoint> JobCheckpoints::newest() const {
  if (config_.period_steps == StepActionPeriod{StepActionMode::kDisable}) return std::nullopt;
  with_error_place("trainer.checkpointing.save_dir", [&] { directory_.prepare(); });
  if (context_.is_main_process()) {
    for (const auto& path : directory_.others()) {
      context_.log().warning("[checkpoint] ", path.string(), " is no checkpoint of this library: it is not read");
    }
  }
  return directory_.newest();
}

bool JobCheckpoints::is_due(const JobSchedule& schedule, bool is_last) const {
  if (config_.period_steps == StepActionPeriod{StepActionMode::kDisable}) return false;
  return is_last || schedule.should_do_action(config_.period_steps, {.after_advance = true});
}

void JobCheckpoints::save(const TrainingJob& job, const RunPosition& position) const {
  const auto start = std::chrono::steady_clock::now();
  CheckpointState state{.tensors = tensors_of(*job.module, job.optimizer), .values = {}};
  state.values = {{"schedule", job.schedule.state()},
                  {"lr_scheduler", job.lr_scheduler.state()},
                  {"data", position.data},
                  {"task", states_of_ranks(job.context, position.task)},
                  {"metrics", metric_states(job.context, job.metrics)},
                  {"loss_means", metric_states(job.context, *job.loss_means)},
                  {"tracker", position.tracker},
                  {"base_seed", job.config.determinism.base_seed}};
  const std::int64_t step = job.schedule.current_step();
  directory_.save(step, state, config_.num_to_keep);
  if (!job.context.is_main_process()) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  job.context.log().info("saved step ", step, " in ", config_.save_dir.string(), " (", seconds.count(), " s)");
}

void load_model(const SavedCheckpoint& saved, const DistContext& context, const Module& module) {
  saved.load({.tensors = tensors_of_model(module), .values = {}}, context.mesh(MeshDomain::kBatch), kModel);
}

void load(const SavedCheckpoint& saved, TrainingJob& job) {
  saved.load({.tensors = tensors_of_optimizer(*job.module, job.optimizer), .values = {}},
             job.context.mesh(MeshDomain::kBatch), kOptimizer);
  job.lr_scheduler.load_state(value_of(saved, "lr_scheduler"));
  load_metrics(value_of(saved, "metrics"), job.context, job.metrics);
  const auto& loss_means = value_of(saved, "loss_means");
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
