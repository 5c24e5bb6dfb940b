// Whether a program computes what a step needs, in an order that cannot hang.
//
// Example
//   validate(program, {.num_inbox_slots = 2, .max_live_microbatches = 8});
//   // ConfigError: [pipelining::validate] rank 1, action 3 (1B0: stage 1, microbatch 0): expected the forward ...
//
// What is checked, in this order:
//   * each rank computes its own stages, each F once, and with any backward each B, or I and W, once; F before B or I
//     before W, and what each uses before it;
//   * each transfer between ranks has one send, after what makes it, and one receive, before what uses it; the messages
//     of a directed link are received in the order in which they are sent;
//   * no rank waits for ever, even if each send waits where it stands for a slot of its inbox, and each receive for its
//     message;
//   * live microbatches stay below the limit.
#pragma once

#include <cstdint>
#include <optional>

#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d {

struct ProgramLimits {
  // As MessagePlacement::num_inbox_slots. 0: a send and its receive wait for each other.
  std::optional<std::int64_t> num_inbox_slots = std::nullopt;
  // Pairs of stage and microbatch of a rank that have run F and not yet B or W.
  std::optional<std::int64_t> max_live_microbatches = std::nullopt;
};

// Throws ConfigError at the first violation, naming rank, action, stage and microbatch.
void validate(const PipelineProgram& program, const ProgramLimits& limits = {});

// Of a program of computations: all of the above but the messages; ranks wait only for what they use.
void validate_computations(const PipelineProgram& program, const ProgramLimits& limits = {});

}  // namespace d9d
