#include "d9d/loop/measure/memory_budget.h"

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/byte_size.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/error/error_place.h"
#include "d9d/core/rng/default_generators.h"
#include "d9d/loop/measure/measured_plans.h"

namespace d9d {
namespace {

// Collective over the job. Runs work(), and throws on all ranks the first ConfigError that it throws on one.
void refused_together(const DistContext& context, const std::function<void()>& work) {
  nlohmann::json refusal;
  try {
    work();
  } catch (const ConfigError& error) {
    refusal = error_line(error);
  }
  for (const nlohmann::json& each : all_gather_object(refusal, context.mesh(MeshDomain::kBatch))) {
    if (!each.is_null()) throw ConfigError(each.get<std::string>());
  }
}

// Collective over the job.
void check_units(const UnbuiltJob& job, const std::vector<std::shared_ptr<Module>>& stages) {
  std::int64_t num_units = 0;
  refused_together(job.context, [&] {
    for (const auto& stage : stages) {
      for (Module* const unit : activation_units(*stage)) {
        ++num_units;
        unit->for_each_module([&](const std::string&, Module& module) {
          D9D_CHECK(!module.checkpoints_activations(), ConfigError,
                    "[loop::memory_budget] expected one setting of what layers keep, got trainer.memory_budget and "
                    "activation checkpointing of ",
                    module.canonical_name(), ". Set model_provider.checkpointing to false, or the budget to null.");
        });
      }
    }
  });
  std::int64_t all = 0;
  for (const nlohmann::json& each : all_gather_object(num_units, job.context.mesh(MeshDomain::kBatch))) {
    all += each.get<std::int64_t>();
  }
  D9D_CHECK(all > 0, ConfigError,
            "[loop::memory_budget] expected a model with units whose activations can be planned for "
            "trainer.memory_budget, such as decoder layers, got none. Override Module::activation_plans in its layers, "
            "or set the budget to null.");
}

// Returns the plans of the units of a stage. num_units: for each kind and plan, how many units follow it.
std::vector<ActivationPlan> plans_of_stage(Module& stage, const std::vector<AlikeUnits>& kinds,
                                           const UnitKind* measured, const std::vector<std::int64_t>* num_units) {
  std::map<const Module*, ActivationPlan> of_units;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const std::vector<PlanCosts>& costs = measured[kind].plans;
    std::vector<std::size_t> by_bytes(costs.size());
    for (std::size_t i = 0; i < costs.size(); ++i) by_bytes[i] = i;
    std::ranges::stable_sort(by_bytes, {}, [&](std::size_t i) { return costs[i].device_bytes; });
    auto unit = kinds[kind].units.begin();
    for (const std::size_t i : by_bytes) {
      for (std::int64_t count = num_units[kind][i]; count > 0; --count) of_units[*unit++] = costs[i].plan;
    }
  }
  std::vector<ActivationPlan> plans;
  for (const Module* const unit : activation_units(stage)) plans.push_back(of_units.at(unit));
  return plans;
}

// The plans of the units of each stage of this rank.
std::vector<std::vector<ActivationPlan>> plans_of_stages(const MeasuredSplit& split, const MeasuredPlans& measured,
                                                         const ActivationPlanChoice& choice) {
  std::vector<std::vector<ActivationPlan>> plans(split.modules().size());
  std::size_t kind = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    plans[i] = plans_of_stage(*split.modules()[i], measured.units[i], measured.request.kinds.data() + kind,
                              choice.num_units.data() + kind);
    kind += measured.units[i].size();
  }
  return plans;
}

// Collective over the ranks with the same stages, of a job with one stage, whose pass is a step. Runs a pass with what
// is chosen, and chooses again with the difference from what was expected of it. Returns the fastest choice that was
// seen to fit, with the bytes that it took; the first one if none was. Throws ConfigError if by the difference none can
// fit.
ActivationPlanChoice choose_by_trial(const UnbuiltJob& job, MeasuredSplit& split, const MeasuredSplit::Running& running,
                                     const PassKind& pass, const MeasuredPlans& measured) {
  constexpr int kMostTrials = 4;
  ActivationPlanRequest request = measured.request;
  double unused = 0;  // less was taken than expected, by so much
  std::optional<ActivationPlanChoice> best;
  std::set<std::vector<std::vector<std::int64_t>>> tried;
  for (int i = 0; i < kMostTrials; ++i) {
    ActivationPlanChoice choice;
    try {
      choice = choose_activation_plans(request);
    } catch (const ConfigError&) {
      if (!best) throw;
      break;  // by the correction nothing fits
    }
    const double expected = choice.device_bytes + unused;
    // A pass has no moments of the optimiser beside it, so that there is room for what only the correction lets fit.
    const bool has_room = expected - measured.request.resident_bytes <= measured.room_bytes;
    if (!tried.insert(choice.num_units).second || !has_room) break;
    follow_plans({.plans = plans_of_stages(split, measured, choice)}, split.modules());
    choice.device_bytes = bytes_of_step(job, split, running, pass, measured);
    unused = expected - choice.device_bytes;
    request.resident_bytes = measured.request.resident_bytes - unused;
    if (choice.device_bytes > request.device_bytes) continue;
    if (!best || choice.seconds < best->seconds) best = std::move(choice);
  }
  return best ? *best : choose_activation_plans(measured.request);
}

std::string name_of(const ActivationPlan& plan) {
  return cat(enum_name(plan.recompute), plan.offloads ? " + offload" : "");
}

// Returns the lines about one rank for the log.
std::vector<std::string> lines_of(const MeasuredPlans& measured, const ActivationPlanChoice& choice,
                                  const std::vector<StageIndex>& stages) {
  std::vector<std::string> lines;
  double fastest = 0;
  std::size_t kind = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    for (const AlikeUnits& units : measured.units[i]) {
      const UnitKind& costs = measured.request.kinds[kind];
      const std::int64_t num_live = *std::ranges::max_element(costs.num_live);
      lines.push_back(cat("stage ", stages[i].value, ", ", costs.num_units, " units such as ", units.name,
                          num_live == 1 ? "" : cat(", ", num_live, " microbatches at a time"), ":"));
      double least = costs.plans.front().seconds;
      for (std::size_t j = 0; j < costs.plans.size(); ++j) {
        const PlanCosts& plan = costs.plans[j];
        least = std::min(least, plan.seconds);
        std::ostringstream line;
        line << "  " << std::left << std::setw(28) << name_of(plan.plan) << std::right << std::setw(4)
             << choice.num_units[kind][j] << std::fixed << std::setprecision(3) << std::setw(12) << plan.seconds * 1e3
             << " ms" << std::setw(14) << byte_size_text(plan.device_bytes) << std::setw(14)
             << byte_size_text(plan.host_bytes) << " on the host";
        lines.push_back(line.str());
      }
      fastest += static_cast<double>(costs.num_units) * least;
      ++kind;
    }
  }
  std::ostringstream sum;
  sum << "takes " << byte_size_text(choice.device_bytes) << " of " << byte_size_text(measured.request.device_bytes)
      << ", " << byte_size_text(measured.request.resident_bytes)
      << " of them for parameters, their gradients and the optimiser, and " << byte_size_text(choice.host_bytes)
      << " of " << byte_size_text(measured.request.host_bytes) << " of the host";
  if (fastest > 0) {  // otherwise noise is all there is
    sum << "; " << std::fixed << std::setprecision(1) << 100 * (choice.seconds / fastest - 1)
        << " % slower than with the fastest plan everywhere";
  }
  lines.push_back(sum.str());
  return lines;
}

// Collective over the job. Logs the lines of one rank of each place in the pipeline.
void log_lines(const UnbuiltJob& job, const std::vector<std::string>& own, double seconds) {
  const DeviceMesh replicas = job.context.mesh(MeshDomain::kBatch).slice({"dp", "cp", "tp"});
  const nlohmann::json said = replicas.index() == 0 ? nlohmann::json(own) : nlohmann::json::array();
  const std::vector<nlohmann::json> all = all_gather_object(said, job.context.mesh(MeshDomain::kBatch));
  if (!job.context.is_main_process()) return;
  const Logger& log = job.context.log();
  log.info("trainer.memory_budget: measured within ", seconds,
           " s what a unit takes and keeps of a microbatch. Plan, units that follow it, time, kept bytes:");
  for (const nlohmann::json& lines : all) {
    for (const nlohmann::json& line : lines) log.info(line.get<std::string>());
  }
}

}  // namespace

void check_memory_budget(const DistContext& context, const TrainerConfig& config) {
  if (!config.memory_budget) return;
  const bool is_auto = std::holds_alternative<AutoScheduleConfig>(config.pipelining.schedule);
  D9D_CHECK(!is_auto || context.mesh(MeshDomain::kRegular).axis_size("pp") == 1, ConfigError,
            "[loop::memory_budget] expected a schedule by name with trainer.memory_budget, got ",
            "trainer.pipelining.schedule = auto, which would be chosen for stages that keep everything. Name one.");
  D9D_CHECK(
      config.memory_budget->device.size || !context.device().is_cpu(), ConfigError,
      "[loop::memory_budget] expected a size of trainer.memory_budget.device on a CPU, got auto, for which a GPU ",
      "says how much is free. Set a size, such as 8GiB.");
}

std::optional<BudgetedPlans> plans_within_budget(const UnbuiltJob& job, const PipelineSchedule& schedule) {
  if (!job.config.memory_budget || job.schedule.is_done()) return std::nullopt;
  const auto begin = std::chrono::steady_clock::now();
  install_checkpoint_engine();
  const std::int64_t num_ranks = job.context.mesh(MeshDomain::kRegular).axis_size("pp");
  const std::int64_t rank = job.context.mesh(MeshDomain::kRegular).axis_coordinate("pp");
  const StagePlacement placement = placement_of(schedule, num_ranks);
  std::int64_t num_microbatches =
      num_microbatches_to_measure(job, "memory_budget", "Set trainer.memory_budget to null.");
  for (const nlohmann::json& each : all_gather_object(num_microbatches, job.context.mesh(MeshDomain::kBatch))) {
    num_microbatches = std::max(num_microbatches, each.get<std::int64_t>());
  }
  const PipelineProgram program = build_compute_program(schedule, num_ranks, num_microbatches);
  const KeptMoments moments = greatest_moments(program, rank);
  const bool is_split = placement.num_stages() > 1 && std::ranges::any_of(moments, [](const auto& stages) {
                          return std::ranges::any_of(stages, [](const auto& each) { return each.for_weights > 0; });
                        });
  const DefaultGenerators generators(job.context.device());
  wait_for_all(job.context);  // ranks may be threads of one process, which share a generator
  BudgetedPlans budgeted;
  std::vector<std::string> lines;
  try {
    MeasuredSplit split(job, placement);
    if (const auto refusal = split.build()) throw ConfigError(*refusal);
    check_units(job, split.modules());
    split.run_first_microbatch([&](const MeasuredSplit::Running& running) {
      refused_together(job.context, [&] {
        const bool is_whole = placement.num_stages() == 1;
        const PassKind pass{.is_split = is_split, .backward_follows = is_whole};
        const MeasuredPlans measured = measure_plans(job, split, running, moments, pass, num_microbatches);
        budgeted.device_bytes = static_cast<std::int64_t>(measured.request.device_bytes);
        budgeted.plans.resize(split.modules().size());
        if (measured.request.kinds.empty()) return;  // a stage without units
        const ActivationPlanChoice choice =
            is_whole ? choose_by_trial(job, split, running, pass, measured) : choose_activation_plans(measured.request);
        budgeted.plans = plans_of_stages(split, measured, choice);
        lines = lines_of(measured, choice, placement.stages_of(rank));
      });
    });
  } catch (const ConfigError&) {
    throw;
  } catch (const std::exception&) {
    add_error_place("while plans of activations were measured for trainer.memory_budget");
    throw;
  }
  forget_measurement(job.context.device());
  wait_for_all(job.context);
  generators.restore();
  log_lines(job, lines, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return budgeted;
}

void follow_plans(const BudgetedPlans& budgeted, const std::vector<std::shared_ptr<Module>>& stages) {
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::vector<Module*> units = activation_units(*stages[i]);
    D9D_ASSERT(units.size() == budgeted.plans[i].size(), "a stage with other units than were measured");
    for (std::size_t j = 0; j < units.size(); ++j) units[j]->set_activation_plan(budgeted.plans[i][j]);
  }
}

}  // namespace d9d
