// In which order a rank computes, schedule by schedule.
//
// Example
//   const auto stages = StagePlacement::loop(4, 1);
//   to_text(one_f_one_b_order(stages, /*rank=*/3, /*num_microbatches=*/3, {}));   // "3F0 3B0 3F1 3B1 3F2 3B2"
//
// Letters: P ranks, V stages a rank, M microbatches. Each function takes any M >= 1 unless it says otherwise.
#pragma once

#include <cstdint>

#include "d9d/pipelining/program/action.h"
#include "d9d/pipelining/program/stage_placement.h"
#include "d9d/pipelining/schedules/pipeline_schedule_config.h"

namespace d9d {

// All forwards, stage by stage.
[[nodiscard]] RankProgram forward_order(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches);

// All forwards stage by stage, then all backwards in the opposite order (GPipe, looped breadth-first). V M live
// microbatches.
[[nodiscard]] RankProgram breadth_first_order(const StagePlacement& stages, std::int64_t rank,
                                              std::int64_t num_microbatches);

// Each microbatch through all stages of the rank and back before the next one: for a single rank.
[[nodiscard]] RankProgram depth_first_order(const StagePlacement& stages, std::int64_t rank,
                                            std::int64_t num_microbatches);

// Stages in a loop; num_stages_per_rank of `config` must be theirs. Microbatches go in groups of at least P (of M where
// M < P) through all stages of a rank; groups differ by at most one, larger ones first.
[[nodiscard]] RankProgram one_f_one_b_order(const StagePlacement& stages, std::int64_t rank,
                                            std::int64_t num_microbatches, const OneFOneBScheduleConfig& config);

// Stages as a V of V = 2. At most 2 P live microbatches.
[[nodiscard]] RankProgram zero_bubble_v_order(const StagePlacement& stages, std::int64_t rank,
                                              std::int64_t num_microbatches);

// Stages as a V of V = 2, M >= 2 P. At most 2 P + 1 live microbatches.
[[nodiscard]] RankProgram dual_pipe_v_order(const StagePlacement& stages, std::int64_t rank,
                                            std::int64_t num_microbatches);

}  // namespace d9d
