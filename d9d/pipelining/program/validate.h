// Checks that a program computes what a step needs, in an order that cannot hang.
//
// Example
//   validate(program, {.num_inbox_slots = 2, .max_live_microbatches = 8});
//   // ConfigError: [pipelining::validate] rank 1, action 3 (1B0: stage 1, microbatch 0): expected the forward ...
//
// The checks, in this order:
//   * each rank computes its own stages: each F once, and in a program with a backward each B, or I and W, once; F
//     comes before B or I, I before W, and each computation after the computations of its rank whose outputs it uses;
//   * each transfer between ranks has one send, after the computation that outputs it, and one receive, before the
//     computation that uses it; the messages of a directed link are received in the order in which they are sent;
//   * no rank waits for ever, even if each send blocks until a receive buffer is free, and each receive until its
//     message is sent;
//   * live microbatches do not exceed the limit.
#pragma once

#include <cstdint>
#include <optional>

#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d {

struct ProgramLimits {
  // The same as MessagePlacement::num_inbox_slots. 0: a send and its receive wait for each other.
  std::optional<std::int64_t> num_inbox_slots = std::nullopt;
  // The most pairs of stage and microbatch that a rank may keep at the same time, from F to B or W.
  std::optional<std::int64_t> max_live_microbatches = std::nullopt;
};

// Throws ConfigError at the first violation, naming rank, action, stage and microbatch.
void validate(const PipelineProgram& program, const ProgramLimits& limits = {});

// Does the checks of validate() except those of messages, for a program of computations only. A rank then waits only
// for the inputs of its computations.
void validate_computations(const PipelineProgram& program, const ProgramLimits& limits = {});

}  // namespace d9d
