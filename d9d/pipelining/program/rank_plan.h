// The program of one rank, with what its executor needs beside the actions.
//
// Example
//   const RankPlan plan = plan_rank(program, /*rank=*/1);
//   for (const PlannedStep& step : plan) ...            // computations (several: composed), or one message
//   for (const DirectedLink& link : links_of(program))  // every rank makes its links in this order
//
// Lanes say which of two streams of a GPU a computation takes. A forward beside a backward takes the lane that the
// backward does not use, and its microbatch stays there, since autograd runs a backward where its forward ran. Ranks
// with the same stages have the same lanes.
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
  // 1: of an F beside a computation of lane 0, and of what its microbatch does later on that stage. 0: of all others.
  std::int64_t lane = 0;
  bool operator==(const PlannedCompute&) const = default;
};

struct PlannedMessage {
  MessageAction action;
  DirectedLink link;
  std::int64_t sequence = 0;  // how many messages the link carries before it; the same on both of its ranks
  bool operator==(const PlannedMessage&) const = default;
};

using PlannedStep = std::variant<std::vector<PlannedCompute>, PlannedMessage>;

using RankPlan = std::vector<PlannedStep>;

// `program` has passed validate().
[[nodiscard]] RankPlan plan_rank(const PipelineProgram& program, std::int64_t rank);

// Whether a step's computations can run at the same time: an F, and a B, I or W of another stage. Two passes of one
// stage cannot, since they share what the stage has of its own, as gathered parameters.
[[nodiscard]] bool can_run_at_once(const std::vector<PlannedCompute>& parts);

// Those that carry messages, in increasing order of both ranks.
[[nodiscard]] std::vector<DirectedLink> links_of(const PipelineProgram& program);

}  // namespace d9d
