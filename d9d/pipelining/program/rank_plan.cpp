#include "d9d/pipelining/program/rank_plan.h"

#include <map>
#include <set>
#include <utility>

namespace d9d {
namespace {

bool ends_microbatch(const ComputeAction& action) {
  return holds<BackwardAction>(action) || holds<BackwardWeightAction>(action);
}

// Returns the last B or W of each stage, which completes the gradients of its weights.
std::map<StageIndex, ComputeAction> last_of_stages(const RankProgram& program) {
  std::map<StageIndex, ComputeAction> last;
  for (const auto& action : program) {
    for (const auto& part : compute_parts(action)) {
      if (ends_microbatch(part)) last.insert_or_assign(stage_of(part), part);
    }
  }
  return last;
}

bool is_backward_of(const ComputeAction& action, const ComputeAction& forward) {
  return (holds<BackwardAction>(action) || holds<BackwardInputAction>(action)) &&
         stage_of(action) == stage_of(forward) && microbatch_of(action) == microbatch_of(forward);
}

void note_backwards_that_follow(RankPlan& plan) {
  PlannedCompute* before = nullptr;
  for (PlannedStep& step : plan) {
    auto* const parts = std::get_if<std::vector<PlannedCompute>>(&step);
    if (parts == nullptr) continue;
    for (PlannedCompute& part : *parts) {
      if (before != nullptr && holds<ForwardAction>(before->action)) {
        before->backward_follows = is_backward_of(part.action, before->action);
      }
      before = &part;
    }
  }
}

void choose_lanes(RankPlan& plan) {
  std::map<std::pair<StageIndex, MicrobatchIndex>, std::int64_t> lanes;  // lanes of forwards
  for (PlannedStep& step : plan) {
    auto* const parts = std::get_if<std::vector<PlannedCompute>>(&step);
    if (parts == nullptr) continue;
    const auto lane_of = [&](const PlannedCompute& part) -> std::int64_t& {
      return lanes[{stage_of(part.action), microbatch_of(part.action)}];
    };
    for (PlannedCompute& part : *parts) {
      if (!holds<ForwardAction>(part.action)) part.lane = lane_of(part);
    }
    if (!can_run_at_once(*parts)) continue;
    PlannedCompute& first = parts->front();
    PlannedCompute& second = parts->back();
    const bool is_first = holds<ForwardAction>(first.action);
    PlannedCompute& forward = is_first ? first : second;
    forward.lane = lane_of(forward) = 1 - (is_first ? second : first).lane;
  }
}

}  // namespace

bool can_run_at_once(const std::vector<PlannedCompute>& parts) {
  return parts.size() == 2 && holds<ForwardAction>(parts[0].action) != holds<ForwardAction>(parts[1].action) &&
         stage_of(parts[0].action) != stage_of(parts[1].action);
}

RankPlan plan_rank(const PipelineProgram& program, std::int64_t rank) {
  const RankProgram& actions = program.ranks.at(static_cast<std::size_t>(rank));
  const auto last = last_of_stages(actions);
  std::map<DirectedLink, std::int64_t> num_messages;
  RankPlan plan;
  for (const auto& action : actions) {
    if (const auto* message = std::get_if<MessageAction>(&action)) {
      const auto link = *link_of(transfer_of(*message), program.stages);
      plan.emplace_back(PlannedMessage{.action = *message, .link = link, .sequence = num_messages[link]++});
      continue;
    }
    std::vector<PlannedCompute> computations;
    for (const auto& part : compute_parts(action)) {
      const auto found = last.find(stage_of(part));
      computations.push_back({.action = part, .is_last = found != last.end() && found->second == part});
    }
    plan.emplace_back(std::move(computations));
  }
  note_backwards_that_follow(plan);
  choose_lanes(plan);
  return plan;
}

std::vector<DirectedLink> links_of(const PipelineProgram& program) {
  std::set<DirectedLink> links;
  for (const auto& rank : program.ranks) {
    for (const auto& action : rank) {
      const auto* message = std::get_if<MessageAction>(&action);
      if (message != nullptr) links.insert(*link_of(transfer_of(*message), program.stages));
    }
  }
  return {links.begin(), links.end()};
}

}  // namespace d9d
