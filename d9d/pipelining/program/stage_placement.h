// Which rank of a pipeline runs which stages.
//
// Example
//   const auto stages = StagePlacement::v(4, 2);   // 4 ranks, 2 stages each: rank 0 has 0 and 7, rank 3 has 3 and 4
//   stages.rank_of({7});                           // 0
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/pipelining/program/action.h"

namespace d9d {

class StagePlacement {
 public:
  StagePlacement() = default;  // no ranks
  // Makes a custom placement from the rank of each stage. Throws ConfigError unless each rank from 0 to the largest has
  // a stage.
  explicit StagePlacement(std::vector<std::int64_t> rank_of_stage);
  // Places stage s on rank s mod num_ranks.
  [[nodiscard]] static StagePlacement loop(std::int64_t num_ranks, std::int64_t num_stages_per_rank);
  // Places blocks of num_ranks stages in alternating directions: the last stage of a block and the first of the next
  // block are on the same rank.
  [[nodiscard]] static StagePlacement v(std::int64_t num_ranks, std::int64_t num_stages_per_rank);

  [[nodiscard]] std::int64_t num_ranks() const { return static_cast<std::int64_t>(stages_of_.size()); }
  [[nodiscard]] std::int64_t num_stages() const { return static_cast<std::int64_t>(rank_of_.size()); }
  [[nodiscard]] std::int64_t rank_of(StageIndex stage) const {
    return rank_of_.at(static_cast<std::size_t>(stage.value));
  }
  [[nodiscard]] std::int64_t rank_of_last_stage() const { return rank_of_.back(); }
  // Returns the stages of a rank, in increasing order.
  [[nodiscard]] const std::vector<StageIndex>& stages_of(std::int64_t rank) const {
    return stages_of_.at(static_cast<std::size_t>(rank));
  }
  bool operator==(const StagePlacement&) const = default;

 private:
  std::vector<std::int64_t> rank_of_;
  std::vector<std::vector<StageIndex>> stages_of_;
};

}  // namespace d9d
