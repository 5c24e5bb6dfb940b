#include "d9d/loop/checkpoint/job_state.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/device/host_copy.h"
#include "d9d/loop/checks/rank_consistency.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/metrics/reduce_metrics.h"
#include "d9d/model_state/write_model_state.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;

const std::string kModel = kModelPrefix, kOptimizer = "optimizer.", kEma = kEmaPrefix;  // prefixes of names
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

// Throws StateError if an entry of the optimiser's state has the shape of this rank's part of its parameter but no
// layout. Without a layout the entry would count as a whole tensor, which one rank saves and all ranks load.
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

std::map<std::string, DTensor> tensors_of_averages(const Ema& ema) {
  std::map<std::string, DTensor> tensors;
  for (auto& [name, tensor] : ema.state_dict()) tensors.emplace(kEma + name, std::move(tensor));
  return tensors;
}

// Collective. Averages that are not in the checkpoint begin as the loaded weights.
void load_averages(const SavedCheckpoint& saved, const TrainingJob& job) {
  const bool has_averages = !saved.tensors(kEma).names.empty();
  if (job.ema && has_averages) {
    saved.load({.tensors = tensors_of_averages(*job.ema)}, job.context.mesh(MeshDomain::kBatch), kEma);
  } else if (job.context.is_main_process() && job.ema) {
    job.context.log().info("trainer.ema: ", saved.folder().string(),
                           " has no averages of the weights: they begin as its weights");
  } else if (job.context.is_main_process() && has_averages) {
    job.context.log().warning("trainer.ema is null: the averages of the weights in ", saved.folder().string(),
                              " end here, and later checkpoints have none");
  }
}

// Collective. Returns whether any stage of the pipeline has frozen parameters.
bool has_frozen_parameters(const Module& module, const DistContext& context) {
  const auto parameters = module.named_parameters();
  const bool has = std::ranges::any_of(parameters, [](const auto& each) { return !each.second->requires_grad(); });
  const auto all = all_gather_object(has, context.mesh(MeshDomain::kRegular).slice({"pp"}));
  return std::ranges::find(all, nlohmann::json(true)) != all.end();
}

// Also true for a link and its target.
bool is_same_folder(const std::optional<fs::path>& a, const std::optional<fs::path>& b) {
  std::error_code ignored;
  return a == b || (a && b && fs::equivalent(*a, *b, ignored));
}

std::string text_of(const std::optional<fs::path>& path) { return path ? path->string() : "null"; }

std::optional<fs::path> saved_folder(const SavedCheckpoint& saved, const char* key) {
  const auto& folder = value_of(saved, "trainer").at("model_stage_factory").at(key);
  return folder.is_null() ? std::nullopt : std::optional<fs::path>(folder.get<std::string>());
}

// Throws ConfigError unless the job begins with the values that the job which saved began with: those of the same
// source_checkpoint, and of the same base_seed if any of them came from the seed. why: what needs them.
void check_same_source(const SavedCheckpoint& saved, const TrainerConfig& config, const char* why) {
  const ModelStageFactoryConfig& factory = config.model_stage_factory;
  const auto source = source_of(saved);
  D9D_CHECK(is_same_folder(source, factory.source_checkpoint), ConfigError,
            "[loop::checkpoints] expected trainer.model_stage_factory.source_checkpoint = ", text_of(source),
            ", with which ", saved.folder().string(), " was saved, got ", text_of(factory.source_checkpoint), ": ", why,
            ". Continue with the same.");
  const bool come_from_seed = !source || factory.source_may_lack.has_value();
  const auto& seed = value_of(saved, "base_seed");
  D9D_CHECK(!come_from_seed || seed == config.determinism.base_seed, ConfigError,
            "[loop::checkpoints] expected trainer.determinism.base_seed = ", seed.dump(), ", with which ",
            saved.folder().string(), " was saved, got ", config.determinism.base_seed, ": ", why,
            ". Continue with the same.");
}

// Returns the SavedCheckpoint::rank_values() of the ranks that the checkpoint's value named `list` lists.
std::vector<nlohmann::ordered_json> values_of_ranks(const SavedCheckpoint& saved, const char* list) {
  std::vector<nlohmann::ordered_json> values;
  for (const auto rank : value_of(saved, list).get<std::vector<std::size_t>>()) {
    D9D_CHECK(rank < saved.rank_values().size(), IoError, "[loop::checkpoints] expected values of rank ", rank, " in ",
              saved.folder().string(), ", got none. Continue from another checkpoint.");
    values.push_back(saved.rank_values()[rank]);
  }
  return values;
}

// A host copy of an accumulator of this rank. The device may still be writing it.
struct AccumulatorCopy {
  std::string metric;
  nlohmann::json form;             // op and shape
  std::optional<HostCopy> values;  // none: no updates
};

nlohmann::json form_of(const Accumulator& accumulator) {
  return {{"op", to_string(accumulator.op())}, {"shape", accumulator.shape()}};
}

// ranks: metric_ranks(). Leaves out updates of this rank that are copies of another rank's.
std::vector<AccumulatorCopy> copies_of(const MetricMap& metrics, const SideStream& copies, const DeviceMesh& ranks) {
  std::vector<AccumulatorCopy> result;
  for (const auto& [name, metric] : leaf_metrics(metrics)) {
    for (const Accumulator* each : metric->accumulators()) {
      result.push_back({.metric = name, .form = form_of(*each), .values = {}});
      if (each->has_updates() && counts_here(*each, ranks)) result.back().values.emplace(each->value(), copies);
    }
  }
  return result;
}

// Returns a list of accumulators for each metric.
nlohmann::json numbers_of(const std::vector<AccumulatorCopy>& accumulators) {
  nlohmann::json result = nlohmann::json::object();
  for (const auto& [metric, form, values] : accumulators) {
    nlohmann::json& saved = result[metric].emplace_back(form);
    if (!values) continue;
    const at::Tensor numbers = values->wait().contiguous();
    const auto* const first = numbers.const_data_ptr<double>();
    saved["values"] = std::vector<double>(first, first + numbers.numel());
  }
  return result;
}

// Returns CheckpointState::rank_values: a function that waits for the copies of metrics and returns this rank's values.
std::function<nlohmann::json()> rank_values(const TrainingJob& job, const nlohmann::json& task) {
  const SideStream copies(job.context.device());
  const DeviceMesh ranks = metric_ranks(job.context);
  return
      [task, metrics = copies_of(job.metrics, copies, ranks), loss_means = copies_of(*job.loss_means, copies, ranks)] {
        return nlohmann::json{{"task", task}, {"metrics", numbers_of(metrics)}, {"loss_means", numbers_of(loss_means)}};
      };
}

// Older checkpoints have one accumulator of sums a metric, and no list of them.
nlohmann::ordered_json as_list(const nlohmann::ordered_json& saved) {
  if (saved.is_array()) return saved;
  nlohmann::ordered_json list;
  list.push_back({{"op", "sum"}, {"shape", saved.at("shape")}, {"values", saved.at("sums")}});
  return list;
}

// Returns whether this rank takes the metrics of a checkpoint: the first one that updates them, so that LastMetric
// replaces what it has loaded. Others of metric_ranks() stay without updates.
bool loads_metrics(const TrainingJob& job) {
  const DeviceMesh ranks = metric_ranks(job.context);
  return ranks.axis_coordinate("pp") == job.placement.rank_of_last_stage() && ranks.axis_coordinate("dp") == 0 &&
         ranks.axis_coordinate("cp") == 0;
}

// Updates the accumulators of a metric with those that a rank has saved, where loads_metrics(). Throws StateError on
// all ranks if the metric has other accumulators.
void load_accumulators(const nlohmann::ordered_json& saved, const std::string& name, Metric& metric,
                       const TrainingJob& job) {
  nlohmann::json forms = nlohmann::json::array(), saved_forms = nlohmann::json::array();
  const std::vector<Accumulator*> accumulators = metric.accumulators();
  for (const Accumulator* each : accumulators) forms.push_back(form_of(*each));
  for (const auto& each : saved) saved_forms.push_back({{"op", each.at("op")}, {"shape", each.at("shape")}});
  D9D_CHECK(forms == saved_forms, StateError, "[loop::checkpoints] expected the metric '", name,
            "' to have the accumulators ", saved_forms.dump(), " that the checkpoint has of it, got ", forms.dump(),
            ". Give another metric another name.");
  if (!loads_metrics(job)) return;
  for (std::size_t i = 0; i < accumulators.size(); ++i) {
    if (!saved[i].contains("values")) continue;
    const at::Tensor values = at::tensor(saved[i].at("values").get<std::vector<double>>(), at::kDouble);
    accumulators[i]->update(values.view(accumulators[i]->shape()).to(job.context.device()));
  }
}

// Loads the updates of all ranks since the last log. kind: "metrics" or "loss_means".
void load_metrics(const SavedCheckpoint& saved, const char* kind, const TrainingJob& job, const MetricMap& metrics) {
  const MetricMap leaves = leaf_metrics(metrics);
  for (const auto& of_rank : values_of_ranks(saved, "metric_ranks")) {
    for (const auto& [name, accumulators] : of_rank.at(kind).items()) {
      const auto metric = leaves.find(name);
      if (metric != leaves.end()) load_accumulators(as_list(accumulators), name, *metric->second, job);
    }
  }
}

// Creates the means of losses that a checkpoint has.
void create_loss_means(const SavedCheckpoint& saved, MetricMap& means) {
  for (const auto& of_rank : values_of_ranks(saved, "metric_ranks")) {
    for (const auto& [name, accumulators] : of_rank.at("loss_means").items()) {
      means.try_emplace(name, std::make_shared<MeanMetric>());
    }
  }
}

// Returns the names that tensors_of() gives to persistent buffers.
std::set<std::string> buffers_of(const Module& module) {
  std::set<std::string> names;
  for (const auto& [name, buffer] : module.named_buffers()) {
    if (buffer->is_persistent) names.insert(kModel + name);
  }
  return names;
}

// Returns TrainingJob::evaluations as JSON.
nlohmann::ordered_json evaluations_json(const TrainingJob& job) {
  nlohmann::ordered_json sets = nlohmann::ordered_json::object();
  for (const auto& [name, history] : job.evaluations) {
    sets[name] = {{"last_step", history.last_step}};
    if (!history.best_value) continue;
    sets[name]["best"] = {{"value", *history.best_value}, {"step", history.best_step}, {"of", history.best_of}};
  }
  return sets;
}

nlohmann::ordered_json data_phase_json(const DataPhase& phase) {
  nlohmann::ordered_json json = {{"name", nullptr}, {"first_step", phase.first_step}};
  if (phase.name) json["name"] = *phase.name;
  return json;
}

// Also loads sets that this start of the job does not evaluate: their best checkpoints stay.
void load_evaluations(const nlohmann::ordered_json& sets, TrainingJob& job) {
  for (const auto& [name, saved] : sets.items()) {
    EvaluationHistory& history = job.evaluations[name];
    history.last_step = saved.at("last_step").get<std::int64_t>();
    if (!saved.contains("best")) continue;
    const auto& best = saved.at("best");
    history.best_of = best.at("of");
    history.best_value = best.at("value").get<double>();
    history.best_step = best.at("step").get<std::int64_t>();
  }
}

}  // namespace

std::vector<std::int64_t> task_ranks(const DistContext& context, const StagePlacement& placement) {
  const DeviceMesh ranks = context.mesh(MeshDomain::kBatch).slice({"pp", "dp"});
  const std::vector<std::int64_t> all = ranks.ranks();
  const auto first = all.begin() + placement.rank_of_last_stage() * ranks.axis_size("dp");
  return {first, first + ranks.axis_size("dp")};
}

DataPhase data_phase_of(const SavedCheckpoint& saved) {
  const auto phase = saved.values().find("data_phase");
  if (phase == saved.values().end()) return {};  // an older checkpoint
  DataPhase result{.name = {}, .first_step = phase->at("first_step").get<std::int64_t>()};
  if (!phase->at("name").is_null()) result.name = phase->at("name").get<std::string>();
  return result;
}

std::optional<fs::path> source_of(const SavedCheckpoint& saved) { return saved_folder(saved, "source_checkpoint"); }

void check_source_of_reference(const SavedCheckpoint& saved, const TrainerConfig& config) {
  constexpr const char* kWhy = "the reference is not in it";
  check_same_source(saved, config, kWhy);
  const auto adapters = saved_folder(saved, "source_adapters");
  D9D_CHECK(is_same_folder(adapters, config.model_stage_factory.source_adapters), ConfigError,
            "[loop::checkpoints] expected trainer.model_stage_factory.source_adapters = ", text_of(adapters),
            ", with which ", saved.folder().string(), " was saved, got ",
            text_of(config.model_stage_factory.source_adapters), ": ", kWhy, ". Continue with the same.");
}

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

void load_model(const SavedCheckpoint& saved, const DistContext& context, const Module& module,
                const TrainerConfig& config) {
  const bool trainable_only = config.model_stage_factory.checkpoint_only_trainable_parameters;
  const auto& saved_with = value_of(saved, kTrainableOnly);
  D9D_CHECK(saved_with == trainable_only, ConfigError, "[loop::checkpoints] expected trainer.model_stage_factory.",
            kTrainableOnly, " = ", saved_with.dump(), ", with which ", saved.folder().string(), " was saved, got ",
            trainable_only ? "true" : "false", ". Continue with the same, or begin in another folder.");
  if (trainable_only && has_frozen_parameters(module, context)) {
    check_same_source(saved, config, "frozen parameters are not in it");
  }
  saved.load({.tensors = tensors_of_model(module, trainable_only)}, context.mesh(MeshDomain::kBatch), kModel);
}

std::map<std::string, DTensor> saved_tensors(const TrainingJob& job) {
  auto tensors =
      tensors_of(*job.module, job.optimizer, job.config.model_stage_factory.checkpoint_only_trainable_parameters);
  if (job.ema) tensors.merge(tensors_of_averages(*job.ema));
  return tensors;
}

CheckpointState checkpoint_state(const TrainingJob& job, const RunPosition& position) {
  CheckpointState state{.tensors = saved_tensors(job),
                        .buffers = buffers_of(*job.module),
                        .values = {},
                        .copies = copies_of_buffers(*job.module, job.stages, kModelPrefix),
                        .equal_values = equal_at_saves(),
                        .rank_values = rank_values(job, position.task)};
  state.values = {{"schedule", job.schedule.state()},
                  {"data_phase", data_phase_json(job.data_phase)},
                  {"num_updates", job.updates.num_updates()},
                  {"num_skipped_in_a_row", job.updates.num_skipped_in_a_row()},
                  {"spikes", job.spikes.state()},
                  {"lr_scheduler", job.lr_scheduler.state()},
                  {"data", position.data},
                  {"tracker", position.tracker},
                  {"evaluations", evaluations_json(job)},
                  {"handlers", job.events->states()},
                  {"base_seed", job.config.determinism.base_seed},
                  {kTrainableOnly, job.config.model_stage_factory.checkpoint_only_trainable_parameters},
                  {"task_ranks", task_ranks(job.context, job.placement)},
                  {"metric_ranks", metric_ranks(job.context).ranks()},
                  {"mesh", write_record(job.context.mesh_parameters())},
                  {"trainer", write_record(job.config)},
                  {"written", job.written},
                  {"auto_schedule", job.auto_schedule},
                  {"hparams", job.hparams}};
  return state;
}

void load(const SavedCheckpoint& saved, TrainingJob& job) {
  saved.load({.tensors = tensors_of_optimizer(*job.module, job.optimizer)}, job.context.mesh(MeshDomain::kBatch),
             kOptimizer);
  load_averages(saved, job);
  job.lr_scheduler.load_state(value_of(saved, "lr_scheduler"));
  load_metrics(saved, "metrics", job, job.metrics);
  create_loss_means(saved, *job.loss_means);
  load_metrics(saved, "loss_means", job, *job.loss_means);
  job.tracker_state = value_of(saved, "tracker");
  const auto num_updates = saved.values().find("num_updates");  // older checkpoints lack it
  job.updates.load(num_updates == saved.values().end() ? saved.step() : num_updates->get<std::int64_t>(),
                   saved.values().value("num_skipped_in_a_row", std::int64_t{0}));
  if (const auto spikes = saved.values().find("spikes"); spikes != saved.values().end()) job.spikes.load_state(*spikes);
  const auto evaluations = saved.values().find("evaluations");  // older checkpoints lack them
  if (evaluations != saved.values().end()) load_evaluations(*evaluations, job);
  const auto handlers = saved.values().find("handlers");  // likewise
  if (handlers != saved.values().end()) job.events->load_states(*handlers);
  if (job.context.is_main_process()) {
    job.context.log().info("continues after step ", saved.step(), " from ", saved.folder().string());
  }
}

}  // namespace d9d
