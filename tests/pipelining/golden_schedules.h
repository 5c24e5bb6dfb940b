// The schedules of golden_programs.txt by the names in that file, and the lines of the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "d9d/pipelining/program/pipeline_program.h"

namespace d9d::test {

// The computations of "1f1b V=2 zb" on so many ranks, straight from the orders of the schedules.
[[nodiscard]] PipelineProgram golden_computations(const std::string& schedule, std::int64_t num_ranks,
                                                  std::int64_t num_microbatches);

// A line of golden_programs.txt.
struct GoldenConfiguration {
  std::string schedule;
  std::int64_t num_ranks = 0;
  std::int64_t num_microbatches = 0;
  std::vector<std::string> hashes;  // one a rank
};
[[nodiscard]] std::vector<GoldenConfiguration> golden_configurations();

}  // namespace d9d::test
