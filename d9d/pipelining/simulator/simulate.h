// How long a program takes, and what each rank does when.
//
// Example
//   const Simulation run = simulate(build_program(schedule_of(GPipeScheduleConfig{}), 4, 8));
//   run.makespan;                 // 33: forwards of 1, backwards of 2
//   run.idle_share();             // 0.273, the bubble
//
// A rank computes one action after the other. A message leaves as soon as what makes it ends, its link is free and its
// inbox has a slot; the rank computes on meanwhile. A receive holds the rank until its message is there; directly
// before composed computations it holds only the one that uses it. A program of computations only is simulated with the
// messages that place_messages() gives it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "d9d/pipelining/program/pipeline_costs.h"
#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d {

enum class MessageChannels {
  kLinks,  // each directed link by itself
  // All messages of a rank pass one after the other, each when both of its ranks have come to it: one communicator of
  // NCCL for the whole pipeline. Needs a program with messages.
  kOneARank,
};

struct SimulationOptions {
  PipelineCosts costs = {};
  MessageChannels channels = MessageChannels::kLinks;
  std::optional<std::int64_t> num_inbox_slots = std::nullopt;  // of each link; none: any number, at least 1
};

struct ComputeSpan {
  ComputeAction action;
  std::int64_t rank = 0;
  double start = 0;
  double end = 0;
  bool is_composed = false;
};

struct MessageSpan {
  Transfer transfer;
  DirectedLink link;
  double ready = 0;  // what it carries is made
  double start = 0;  // it begins to occupy its link
  double arrival = 0;
  double received = 0;  // its slot is free again
};

struct Simulation {
  std::int64_t num_ranks = 0;
  double makespan = 0;
  std::vector<ComputeSpan> computations;  // rank by rank, in order
  std::vector<MessageSpan> messages;      // link by link, in order

  // The share of `rank`'s time in which it does not compute.
  [[nodiscard]] double idle_share(std::int64_t rank) const;
  // Of all ranks together.
  [[nodiscard]] double idle_share() const;
};

// Throws ConfigError where the ranks wait for each other in a circle, naming one that waits.
[[nodiscard]] Simulation simulate(const PipelineProgram& program, const SimulationOptions& options = {});

}  // namespace d9d
