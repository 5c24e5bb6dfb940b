// Inserts sends and receives into programs of computations.
//
// Example
//   const PipelineProgram program = insert_messages(computations, {.num_inbox_slots = 2});
//
// A send directly follows the computation that outputs its transfer. A receive directly precedes the computation that
// uses the transfer, so that no rank waits for a message that it does not need yet. The messages of a link are received
// in the order in which they are sent. With a limited number of receive buffers, some receives are placed earlier,
// since ranks could otherwise wait for each other's buffers for ever. To find these receives, the ranks are simulated
// with the given costs: where a sender would wait for a free buffer, the receiver's program gets the receive of the
// link's oldest delivered message before its next computation.
#pragma once

#include <cstdint>
#include <optional>

#include "d9d/pipelining/program/pipeline_costs.h"
#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d {

struct MessagePlacement {
  // Receive buffers of a directed link: messages that may be sent and not yet received. 0: a send waits for its
  // receive. nullopt: no limit.
  std::optional<std::int64_t> num_inbox_slots = 2;
  PipelineCosts costs = {};  // decide which receives come early; programs do not hang with any costs
};

// Returns the program with messages, the same whichever rank calls it. Throws ConfigError if computations wait for each
// other in a circle, naming a rank and the computation at which it waits.
[[nodiscard]] PipelineProgram insert_messages(const PipelineProgram& computations,
                                              const MessagePlacement& placement = {});

// Returns the program with messages in the order of Python d9d. Places them in repeated sweeps over the ranks: a
// computation is immediately followed by its send, and the receive is added to the receiver's program at the same time.
// A receive may come long before the computation that uses its message; then the rank waits at the receive, and later
// sends of the rank are delayed.
[[nodiscard]] PipelineProgram place_messages_by_sweep(const PipelineProgram& computations);

}  // namespace d9d
