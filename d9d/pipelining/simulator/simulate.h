// Simulates a program: how long it takes, and when each rank runs each computation.
//
// Example
//   const Simulation run = simulate(build_program(schedule_of(GPipeScheduleConfig{}), 4, 8));
//   run.makespan;                 // 33, if a forward takes 1 and a backward 2
//   run.bubble_fraction();        // 0.273
//
// A rank runs its actions in order. The following holds for MessageChannels::kLinks; with kOneARank, composed
// computations run one after the other, and only the computation that uses a message waits for it. Composed
// computations overlap as PipelineCosts::composed_overlap says. A message is sent as soon as its transfer has been
// computed, its link is free and a receive buffer is free; the rank continues to compute meanwhile. A rank waits at a
// receive until the message has arrived; if composed computations follow directly, only the computation that uses the
// message waits. A program of computations only is simulated with the messages that insert_messages() inserts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "d9d/pipelining/program/pipeline_costs.h"
#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d {

enum class MessageChannels {
  kLinks,  // each directed link delivers independently of the others
  // All messages of a rank pass one after the other, each when sender and receiver have reached it in their programs,
  // as with one NCCL communicator for the whole pipeline. Needs a program with messages.
  kOneARank,
};

struct SimulationOptions {
  PipelineCosts costs = {};
  MessageChannels channels = MessageChannels::kLinks;
  std::optional<std::int64_t> num_inbox_slots = std::nullopt;  // receive buffers of a link, >= 1; nullopt: no limit
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
  double ready = 0;  // when its transfer has been computed
  double start = 0;  // when it begins to occupy its link
  double arrival = 0;
  double received = 0;  // when its receive buffer is free again
};

struct Simulation {
  std::int64_t num_ranks = 0;
  double makespan = 0;
  std::vector<ComputeSpan> computations;  // rank by rank, in the order of the program
  std::vector<MessageSpan> messages;      // with kLinks link by link in the order of sending; with kOneARank unsorted

  // Returns the bubble fraction of `rank`: the share of the makespan in which it does not compute.
  [[nodiscard]] double bubble_fraction(std::int64_t rank) const;
  // Returns the mean of the bubble fractions of all ranks.
  [[nodiscard]] double bubble_fraction() const;
};

// Throws ConfigError if the ranks wait for each other in a circle, naming one that waits.
[[nodiscard]] Simulation simulate(const PipelineProgram& program, const SimulationOptions& options = {});

}  // namespace d9d
