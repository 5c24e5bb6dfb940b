// The checks of validate(). Each throws ConfigError at the first violation and assumes that the checks above it passed.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d::detail {

// Returns text such as "rank 1, action 3 (1B0: stage 1, microbatch 0)". position: the index of the action in the
// program of `rank`.
[[nodiscard]] std::string place_text(const PipelineProgram& program, std::size_t rank, std::size_t position);

// Checks that each rank runs every computation of its stages exactly once, in a legal order.
void check_computations(const PipelineProgram& program);

// Checks that every message is sent and received exactly once, after it is computed and before it is used, and that
// each link delivers in sending order.
void check_messages(const PipelineProgram& program);

// Checks that no rank waits for ever. In a program without messages a computation waits for its inputs from other
// ranks.
void check_waits(const PipelineProgram& program, std::optional<std::int64_t> num_inbox_slots);

void check_live_microbatches(const PipelineProgram& program, std::int64_t limit);

}  // namespace d9d::detail
