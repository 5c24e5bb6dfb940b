#include "d9d/pipelining/program/rank_plan.h"

#include <algorithm>
#include <set>
#include <utility>

namespace d9d {
namespace {

bool ends_microbatch(const ComputeAction& action) {
  return holds<BackwardAction>(action) || holds<BackwardWeightAction>(action);
}

// The slots of one stage; the smallest free one is taken.
class Slots {
 public:
  std::int64_t take(MicrobatchIndex microbatch) {
    std::int64_t slot = 0;
    while (taken_.contains(slot)) ++slot;
    taken_.insert(slot);
    slot_of_[microbatch] = slot;
    count_ = std::max(count_, slot + 1);
    return slot;
  }
  [[nodiscard]] std::int64_t of(MicrobatchIndex microbatch) const { return slot_of_.at(microbatch); }
  void give_back(MicrobatchIndex microbatch) { taken_.erase(slot_of_.at(microbatch)); }
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  std::set<std::int64_t> taken_;
  std::map<MicrobatchIndex, std::int64_t> slot_of_;
  std::int64_t count_ = 0;
};

// The last computation of each stage that completes gradients of weights.
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
  for (PlannedStep& step : plan.steps) {
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
  std::map<std::pair<StageIndex, MicrobatchIndex>, std::int64_t> lanes;  // of forwards
  for (PlannedStep& step : plan.steps) {
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
  const bool has_backward = program.has_backward();
  const auto last = last_of_stages(actions);
  std::map<StageIndex, Slots> slots;
  std::map<DirectedLink, std::int64_t> num_messages;
  RankPlan plan;
  for (const auto& action : actions) {
    if (const auto* message = std::get_if<MessageAction>(&action)) {
      const auto link = *link_of(transfer_of(*message), program.stages);
      plan.steps.emplace_back(PlannedMessage{.action = *message, .link = link, .sequence = num_messages[link]++});
      continue;
    }
    std::vector<PlannedCompute> computations;
    for (const auto& part : compute_parts(action)) {
      Slots& of_stage = slots[stage_of(part)];
      const auto found = last.find(stage_of(part));
      computations.push_back(
          {.action = part,
           .slot = holds<ForwardAction>(part) ? of_stage.take(microbatch_of(part)) : of_stage.of(microbatch_of(part)),
           .is_last = found != last.end() && found->second == part});
    }
    for (const auto& part : compute_parts(action)) {  // what runs beside it still has its slot
      if (ends_microbatch(part) || !has_backward) slots[stage_of(part)].give_back(microbatch_of(part));
    }
    plan.steps.emplace_back(std::move(computations));
  }
  note_backwards_that_follow(plan);
  choose_lanes(plan);
  for (const auto& [stage, of_stage] : slots) plan.num_slots[stage] = of_stage.count();
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
