// Puts sends and receives into programs of computations.
//
// Example
//   const PipelineProgram program = place_messages(computations, {.num_inbox_slots = 2});
//
// A send directly follows what makes its transfer. A receive stands directly before what uses the transfer, so that no
// rank waits for a message that it does not need yet; the messages of one link are received in the order in which they
// are sent. With a limited inbox a rank receives earlier, between two computations, what has arrived, if the sender
// waits for the slot: without that, ranks that wait for each other's inboxes could hang.
#pragma once

#include <cstdint>
#include <optional>

#include "d9d/pipelining/program/pipeline_costs.h"
#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d {

struct MessagePlacement {
  // Messages of a directed link that may be sent and not yet received. 0: a sender waits for its receiver; none: any
  // number.
  std::optional<std::int64_t> num_inbox_slots = 2;
  PipelineCosts costs = {};  // decide which receives come early; any costs give a program that does not hang
};

// The program that results does not depend on the rank that builds it. Throws ConfigError where computations wait for
// each other in a circle, naming them.
[[nodiscard]] PipelineProgram place_messages(const PipelineProgram& computations,
                                             const MessagePlacement& placement = {});

// The order of Python d9d: send and receive at once, in repeated sweeps over the ranks. A receive may stand long before
// its use, so that a rank waits for it and its own messages behind it.
[[nodiscard]] PipelineProgram place_messages_by_sweep(const PipelineProgram& computations);

}  // namespace d9d
