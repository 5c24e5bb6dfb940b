// The program of one rank in the form that the executor runs: computations with the stream that they run on, messages
// with the link that they take.
//
// Example
//   const RankPlan plan = plan_rank(program, /*rank=*/1);
//   for (const PlannedStep& step : plan) ...            // computations (several: composed), or one message
//   for (const DirectedLink& link : links_of(program))  // every rank opens its links in this order
//
// A lane says on which of two streams of a GPU a computation runs. A forward that is composed with a backward gets the
// lane that the backward does not use. The later computations of its microbatch stay on that lane, since autograd runs
// a backward on the stream of its forward. Ranks that run the same stages, as data-parallel replicas do, have the same
// lanes.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "d9d/pipelining/program/pipeline_program.h"
#include "d9d/pipelining/program/transfer.h"

namespace d9d {

struct PlannedCompute {
  ComputeAction action;
  bool is_last = false;           // the stage's last B or W of the step: its gradients of weights are complete after it
  bool backward_follows = false;  // F whose B or I is the next computation of the rank
  // 1 for an F composed with a computation of lane 0, and for later computations of its microbatch on that stage. 0 for
  // all other computations.
  std::int64_t lane = 0;
  bool operator==(const PlannedCompute&) const = default;
};

struct PlannedMessage {
  MessageAction action;
  DirectedLink link;
  std::int64_t sequence = 0;  // the number of earlier messages of the link; the same on both of its ranks
  bool operator==(const PlannedMessage&) const = default;
};

using PlannedStep = std::variant<std::vector<PlannedCompute>, PlannedMessage>;

using RankPlan = std::vector<PlannedStep>;

// Returns the plan of `rank`. `program` must have passed validate().
[[nodiscard]] RankPlan plan_rank(const PipelineProgram& program, std::int64_t rank);

// Returns whether the computations of one PlannedStep can run at the same time: they must be an F, and a B, I or W of
// another stage. Two passes of one stage cannot, since they share state of the stage, such as gathered parameters.
[[nodiscard]] bool can_run_at_once(const std::vector<PlannedCompute>& parts);

// Returns the links that carry messages, in increasing order of `from`, then of `to`.
[[nodiscard]] std::vector<DirectedLink> links_of(const PipelineProgram& program);

}  // namespace d9d
