#include <set>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/transfer.h"
#include "d9d/pipelining/schedules/insert_messages.h"

namespace d9d {
namespace {

// The transfers that each rank has computed itself or received.
using Present = std::vector<std::set<Transfer>>;

bool has_inputs(const Action& action, const std::set<Transfer>& present, std::int64_t num_stages) {
  for (const auto& part : compute_parts(action)) {
    const auto input = input_of(part, num_stages);
    if (input && !present.contains(*input)) return false;
  }
  return true;
}

}  // namespace

PipelineProgram place_messages_by_sweep(const PipelineProgram& computations) {
  const std::int64_t num_stages = computations.stages.num_stages();
  PipelineProgram result = computations;
  Present present(computations.ranks.size());
  std::vector<std::size_t> position(computations.ranks.size(), 0);
  for (auto& rank : result.ranks) rank.clear();
  for (bool has_progress = true; has_progress;) {
    has_progress = false;
    for (std::size_t rank = 0; rank < position.size(); ++rank) {
      if (position[rank] == computations.ranks[rank].size()) continue;
      const Action& action = computations.ranks[rank][position[rank]];
      if (!has_inputs(action, present[rank], num_stages)) continue;
      has_progress = true;
      ++position[rank];
      result.ranks[rank].push_back(action);
      for (const auto& part : compute_parts(action)) {
        const auto output = output_of(part, num_stages);
        if (!output) continue;
        present[rank].insert(*output);
        if (const auto link = link_of(*output, computations.stages)) {
          result.ranks[rank].emplace_back(send_of(*output));
          result.ranks[static_cast<std::size_t>(link->to)].emplace_back(receive_of(*output));
          present[static_cast<std::size_t>(link->to)].insert(*output);
        }
      }
    }
  }
  for (std::size_t rank = 0; rank < position.size(); ++rank) {
    D9D_CHECK(position[rank] == computations.ranks[rank].size(), ConfigError, "[pipelining::messages] rank ", rank,
              " waits at ", to_text(computations.ranks[rank][position[rank]]),
              " for an input that no rank can compute before. Correct the order of the schedule.");
  }
  return result;
}

}  // namespace d9d
