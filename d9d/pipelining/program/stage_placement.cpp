#include "d9d/pipelining/program/stage_placement.h"

#include <algorithm>
#include <utility>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::int64_t checked_num_stages(std::int64_t num_ranks, std::int64_t num_stages_per_rank) {
  D9D_CHECK(num_ranks >= 1 && num_stages_per_rank >= 1, ConfigError,
            "[pipelining::program] expected at least one rank and one stage a rank, got ", num_ranks, " ranks with ",
            num_stages_per_rank, " stages each. Change them.");
  return num_ranks * num_stages_per_rank;
}

}  // namespace

StagePlacement::StagePlacement(std::vector<std::int64_t> rank_of_stage) : rank_of_(std::move(rank_of_stage)) {
  const auto smallest = std::ranges::min_element(rank_of_);
  D9D_CHECK(smallest != rank_of_.end() && *smallest >= 0, ConfigError,
            "[pipelining::program] expected the rank of at least one stage, and ranks from 0 on. Name a rank for each "
            "stage.");
  stages_of_.resize(static_cast<std::size_t>(*std::ranges::max_element(rank_of_)) + 1);
  for (std::size_t stage = 0; stage < rank_of_.size(); ++stage) {
    stages_of_[static_cast<std::size_t>(rank_of_[stage])].push_back({static_cast<std::int64_t>(stage)});
  }
  for (std::size_t rank = 0; rank < stages_of_.size(); ++rank) {
    D9D_CHECK(!stages_of_[rank].empty(), ConfigError, "[pipelining::program] expected a stage on each of ",
              stages_of_.size(), " ranks, got none on rank ", rank, ". Give it one, or use fewer ranks.");
  }
}

StagePlacement StagePlacement::loop(std::int64_t num_ranks, std::int64_t num_stages_per_rank) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(checked_num_stages(num_ranks, num_stages_per_rank)));
  for (std::size_t stage = 0; stage < ranks.size(); ++stage)
    ranks[stage] = static_cast<std::int64_t>(stage) % num_ranks;
  return StagePlacement(std::move(ranks));
}

StagePlacement StagePlacement::v(std::int64_t num_ranks, std::int64_t num_stages_per_rank) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(checked_num_stages(num_ranks, num_stages_per_rank)));
  for (std::size_t stage = 0; stage < ranks.size(); ++stage) {
    const auto block = static_cast<std::int64_t>(stage) / num_ranks;
    const auto offset = static_cast<std::int64_t>(stage) % num_ranks;
    ranks[stage] = block % 2 == 0 ? offset : num_ranks - 1 - offset;
  }
  return StagePlacement(std::move(ranks));
}

}  // namespace d9d
