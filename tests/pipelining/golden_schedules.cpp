#include "tests/pipelining/golden_schedules.h"

#include <fstream>
#include <sstream>

#include "d9d/base/check.h"
#include "d9d/pipelining/schedules/compute_order.h"

namespace d9d::test {

PipelineProgram golden_computations(const std::string& schedule, std::int64_t num_ranks,
                                    std::int64_t num_microbatches) {
  const auto v_at = schedule.find("V=");
  const std::int64_t num_stages_per_rank = v_at == std::string::npos ? 1 : schedule[v_at + 2] - '0';
  const bool is_v = schedule == "zero_bubble_v" || schedule == "dual_pipe_v";
  const OneFOneBScheduleConfig one_f_one_b{.num_stages_per_rank = num_stages_per_rank,
                                           .zero_bubble = schedule.ends_with(" zb")};
  PipelineProgram program{
      .num_microbatches = num_microbatches,
      .stages = is_v ? StagePlacement::v(num_ranks, 2) : StagePlacement::loop(num_ranks, num_stages_per_rank)};
  const auto order = [&](std::int64_t rank) {
    if (schedule == "inference") return forward_order(program.stages, rank, num_microbatches);
    if (schedule == "zero_bubble_v") return zero_bubble_v_order(program.stages, rank, num_microbatches);
    if (schedule == "dual_pipe_v") return dual_pipe_v_order(program.stages, rank, num_microbatches);
    if (schedule.starts_with("1f1b")) return one_f_one_b_order(program.stages, rank, num_microbatches, one_f_one_b);
    return breadth_first_order(program.stages, rank, num_microbatches);
  };
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) program.ranks.push_back(order(rank));
  return program;
}

std::vector<GoldenConfiguration> golden_configurations() {
  std::ifstream file(std::string(D9D_SOURCE_DIR) + "/tests/pipelining/golden_programs.txt");
  std::vector<GoldenConfiguration> result;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    GoldenConfiguration configuration{.schedule = line.substr(0, line.find(','))};
    const auto number = [&](const char* name) { return std::stoll(line.substr(line.find(name) + 3)); };
    configuration.num_ranks = number(" P=");
    configuration.num_microbatches = number(" M=");
    std::istringstream hashes(line.substr(line.find(':') + 1));
    for (std::string hash; hashes >> hash;) configuration.hashes.push_back(hash);
    result.push_back(configuration);
  }
  return result;
}

}  // namespace d9d::test
