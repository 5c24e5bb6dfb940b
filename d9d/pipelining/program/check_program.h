// The parts of validate(). Each throws ConfigError at the first violation, and assumes that those above it passed.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d::detail {

// "rank 1, action 3 (1B0: stage 1, microbatch 0)"
[[nodiscard]] std::string place_text(const PipelineProgram& program, std::size_t rank, std::size_t position);

// Each computation once, on its rank, in a legal order.
void check_computations(const PipelineProgram& program);

// Each message once, where it must be, in the order of its link.
void check_messages(const PipelineProgram& program);

// No rank waits for ever. Of a program without messages: ranks wait where they compute, for what they use.
void check_waits(const PipelineProgram& program, std::optional<std::int64_t> num_inbox_slots);

void check_live_microbatches(const PipelineProgram& program, std::int64_t limit);

}  // namespace d9d::detail
