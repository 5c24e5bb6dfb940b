#include "d9d/pipelining/simulator/choose_schedule.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/pipelining/api/stage_info.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"
#include "d9d/pipelining/simulator/explain_choice.h"
#include "d9d/pipelining/simulator/memory.h"
#include "d9d/pipelining/simulator/simulate.h"

namespace d9d {
namespace {

constexpr std::int64_t kMostVirtualLayers = 8;  // balance() tries 0 to this many at either end

void add(StageCosts& sum, const StageCosts& more) {
  sum.forward += more.forward;
  sum.backward += more.backward;
  sum.backward_input += more.backward_input;
  sum.backward_weight += more.backward_weight;
  sum.activation_bytes += more.activation_bytes;
  sum.deferred_bytes += more.deferred_bytes;
  sum.resident_bytes += more.resident_bytes;
}

// A candidate before it is simulated.
struct Draft {
  ScheduleCandidate candidate;
  PipelineProgram computations;
  PipelineCosts costs;
  double least = 0;  // lower bound of the simulated makespan
};

// Returns a lower bound of the makespan. For each rank, adds the time of all its computations to the time that one
// microbatch needs for the forwards on all stages before the rank's first stage; returns the largest of these sums.
double least_makespan(const PipelineProgram& program, const PipelineCosts& costs) {
  double least = 0;
  for (std::int64_t rank = 0; rank < program.stages.num_ranks(); ++rank) {
    double time = 0;
    for (StageIndex stage{0}; stage < program.stages.stages_of(rank).front(); ++stage.value) {
      time += costs_of(costs, stage).forward;
    }
    for (const auto& action : program.ranks[static_cast<std::size_t>(rank)]) {
      const auto parts = compute_parts(action);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        time += duration_of(costs, parts[i]) - (i > 0 ? overlap_of(costs, parts[i - 1], parts[i]) : 0);
      }
    }
    least = std::max(least, time);
  }
  return least;
}

// Returns nullopt if the schedule cannot run with this number of microbatches, if a stage would have no layer, or if
// stages were measured but not for this number of stages.
std::optional<Draft> draft(const ScheduleRequest& request, const MicrobatchOption& option,
                           const ScheduleCandidate& candidate) {
  Draft result{.candidate = candidate};
  try {
    result.computations = build_compute_program(schedule_of(candidate.schedule), request.num_ranks, option.count);
    result.costs = {.stages = stage_costs(option, candidate, result.computations.stages.num_stages()),
                    .link = request.link,
                    .composed_overlap = request.composed_overlap};
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  result.least = least_makespan(result.computations, result.costs);
  return result;
}

double resident_bytes(const PipelineCosts& costs, const StagePlacement& placement, std::int64_t rank) {
  double bytes = 0;
  for (const StageIndex stage : placement.stages_of(rank)) bytes += costs_of(costs, stage).resident_bytes;
  return bytes;
}

ScheduleCandidate simulated(const ScheduleRequest& request, const Draft& draft) {
  ScheduleCandidate candidate = draft.candidate;
  const MessagePlacement placement{.costs = draft.costs};
  const Simulation run = simulate(insert_messages(draft.computations, placement),
                                  {.costs = draft.costs, .num_inbox_slots = placement.num_inbox_slots});
  candidate.makespan = run.makespan;
  candidate.bubble_fraction = run.bubble_fraction();
  for (std::int64_t rank = 0; rank < run.num_ranks; ++rank) {
    const double resident = resident_bytes(draft.costs, draft.computations.stages, rank);
    candidate.peak_bytes = std::max(candidate.peak_bytes, resident + peak_bytes(run, draft.costs, rank));
  }
  candidate.fits = !request.max_bytes || candidate.peak_bytes <= *request.max_bytes;
  return candidate;
}

bool is_better(const ScheduleCandidate& a, const ScheduleCandidate& b) {
  return std::tuple(a.makespan, a.peak_bytes) < std::tuple(b.makespan, b.peak_bytes);
}

// Simulates drafts in the order of their lower bounds, until no remaining draft can be shorter than the best. Returns
// those that it simulated, the best first.
std::vector<ScheduleCandidate> simulate_shortest(const ScheduleRequest& request, std::vector<Draft> drafts) {
  std::ranges::stable_sort(drafts, {}, &Draft::least);
  std::vector<ScheduleCandidate> candidates;
  const ScheduleCandidate* best = nullptr;
  candidates.reserve(drafts.size());
  for (const Draft& one : drafts) {
    if (best != nullptr && one.least > best->makespan) break;
    candidates.push_back(simulated(request, one));
    const ScheduleCandidate& latest = candidates.back();
    if (latest.fits && (best == nullptr || is_better(latest, *best))) best = &latest;
  }
  std::ranges::stable_sort(candidates, is_better);
  return candidates;
}

std::vector<Draft> drafts_of(const ScheduleRequest& request) {
  std::vector<Draft> drafts;
  const auto schedules =
      request.schedules.empty() ? training_schedules(request.max_stages_per_rank) : request.schedules;
  for (const auto& option : request.microbatches) {
    for (const auto& schedule : schedules) {
      const ScheduleCandidate candidate{.schedule = schedule,
                                        .num_microbatches = option.count,
                                        .num_virtual_layers_pre = request.num_virtual_layers_pre,
                                        .num_virtual_layers_post = request.num_virtual_layers_post};
      if (auto one = draft(request, option, candidate)) drafts.push_back(std::move(*one));
    }
  }
  return drafts;
}

// Returns ScheduleChoice::balanced. Uses the costs of the model even if stages were measured, because a measured stage
// has a fixed number of layers.
std::optional<ScheduleCandidate> balance(const ScheduleRequest& request, const ScheduleCandidate& best) {
  MicrobatchOption option = *std::ranges::find(request.microbatches, best.num_microbatches, &MicrobatchOption::count);
  option.stages.clear();
  const auto unbalanced = draft(request, option, best);
  if (!unbalanced) return std::nullopt;
  const double makespan = simulated(request, *unbalanced).makespan;
  std::vector<Draft> drafts;
  for (std::int64_t pre = 0; pre <= kMostVirtualLayers; ++pre) {
    for (std::int64_t post = 0; post <= kMostVirtualLayers; ++post) {
      ScheduleCandidate candidate = best;
      candidate.peak_bytes = 0;
      candidate.num_virtual_layers_pre = pre;
      candidate.num_virtual_layers_post = post;
      if (auto one = draft(request, option, candidate)) drafts.push_back(std::move(*one));
    }
  }
  for (auto& candidate : simulate_shortest(request, std::move(drafts))) {
    if (!candidate.fits || candidate.makespan >= makespan) continue;
    candidate.makespan *= best.makespan / makespan;
    return candidate;
  }
  return std::nullopt;
}

}  // namespace

std::vector<PipelineScheduleConfig> training_schedules(std::int64_t max_stages_per_rank) {
  std::vector<PipelineScheduleConfig> schedules = {GPipeScheduleConfig{}, ZeroBubbleVScheduleConfig{},
                                                   DualPipeVScheduleConfig{},
                                                   OneFOneBScheduleConfig{1, false, OneFOneBDepth::kClassic}};
  if (max_stages_per_rank < 2) {
    std::erase_if(schedules, [](const auto& one) {
      return std::holds_alternative<ZeroBubbleVScheduleConfig>(one) ||
             std::holds_alternative<DualPipeVScheduleConfig>(one);
    });
  }
  for (std::int64_t v = 1; v <= max_stages_per_rank; ++v) {
    schedules.emplace_back(OneFOneBScheduleConfig{v, false});
    schedules.emplace_back(OneFOneBScheduleConfig{v, true});
    if (v > 1) schedules.emplace_back(LoopedBfsScheduleConfig{v});
  }
  return schedules;
}

std::vector<StageCosts> stage_costs(const ModelCosts& model, std::int64_t num_stages,
                                    std::int64_t num_virtual_layers_pre, std::int64_t num_virtual_layers_post) {
  const LayerDistribution distribution{.num_layers = std::ssize(model.layers),
                                       .num_virtual_layers_pre = num_virtual_layers_pre,
                                       .num_virtual_layers_post = num_virtual_layers_post};
  std::vector<StageCosts> result(static_cast<std::size_t>(num_stages), ModelCosts::kNoCosts);
  for (std::int64_t stage = 0; stage < num_stages; ++stage) {
    StageCosts& costs = result[static_cast<std::size_t>(stage)];
    const PipelineStageInfo info{.num_stages = num_stages, .current_stage = stage};
    const LayerRange layers = layers_of_stage(distribution, info);
    for (std::int64_t i = layers.begin; i < layers.end; ++i) add(costs, model.layers[static_cast<std::size_t>(i)]);
    if (info.is_first()) add(costs, model.pre);
    if (info.is_last()) add(costs, model.post);
  }
  return result;
}

std::vector<StageCosts> stage_costs(const MicrobatchOption& option, const ScheduleCandidate& candidate,
                                    std::int64_t num_stages) {
  if (option.stages.empty()) {
    return stage_costs(option.model, num_stages, candidate.num_virtual_layers_pre, candidate.num_virtual_layers_post);
  }
  const auto measured = option.stages.find(num_stages);
  D9D_CHECK(measured != option.stages.end(), ConfigError, "[pipelining::choose] expected the costs of ", num_stages,
            " stages, got none. Measure them, or choose among other schedules.");
  return measured->second;
}

ScheduleChoice choose_schedule(const ScheduleRequest& request) {
  D9D_CHECK(request.num_ranks >= 1 && !request.microbatches.empty(), ConfigError,
            "[pipelining::choose] expected at least one rank and one number of microbatches, got ", request.num_ranks,
            " and ", request.microbatches.size(), ". Name them.");
  auto drafts = drafts_of(request);
  D9D_CHECK(!drafts.empty(), ConfigError, "[pipelining::choose] expected a schedule that can run the model on ",
            request.num_ranks, " ranks with ", request.microbatches.front().count,
            " microbatches, got none. Use fewer ranks, other schedules, or other numbers of microbatches.");
  ScheduleChoice choice{.candidates = simulate_shortest(request, std::move(drafts))};
  const auto best = std::ranges::find_if(choice.candidates, &ScheduleCandidate::fits);
  if (best == choice.candidates.end()) {
    const auto& least = *std::ranges::min_element(choice.candidates, {}, &ScheduleCandidate::peak_bytes);
    throw ConfigError(cat("[pipelining::choose] expected a schedule that keeps at most ", *request.max_bytes,
                          " bytes on a rank, got at least ", least.peak_bytes, " with ",
                          schedule_of(least.schedule).name, ", M = ", least.num_microbatches,
                          ". Use smaller microbatches, activation checkpointing, or more ranks."));
  }
  choice.best = *best;
  choice.balanced = balance(request, choice.best);
  choice.explanation = detail::explain(request, choice);
  return choice;
}

}  // namespace d9d
