// The programs of all ranks of a pipeline for one step.
//
// Example
//   const PipelineProgram program = parse_program(
//       "r0: 0F0 0SEND_F0 0RECV_B0 0B0\n"
//       "r1: 1RECV_F0 1F0 1B0 1SEND_B0\n");
//   to_text(program) == to_text(parse_program(to_text(program)));
//   validate(program);                                            // program/validate.h
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/pipelining/program/action.h"
#include "d9d/pipelining/program/stage_placement.h"

namespace d9d {

struct PipelineProgram {
  std::int64_t num_microbatches = 0;
  StagePlacement stages = {};
  std::vector<RankProgram> ranks = {};

  // Returns false for a program of forwards only.
  [[nodiscard]] bool has_backward() const;
  // Returns false for a program that has only computations, such as those that schedules build.
  [[nodiscard]] bool has_messages() const;
  bool operator==(const PipelineProgram&) const = default;
};

// Returns the program without its messages.
[[nodiscard]] PipelineProgram compute_only(PipelineProgram program);

// Returns one line for each rank: "r{rank}: {actions}".
[[nodiscard]] std::string to_text(const PipelineProgram& program);

// Parses text in the form of to_text(); empty lines, and comments after a #, are ignored. A stage belongs to the rank
// that runs its computations. Throws ConfigError for text that is not a program. Order and messages are not checked:
// validate() does that.
[[nodiscard]] PipelineProgram parse_program(std::string_view text);

}  // namespace d9d
