// The order in which a rank computes, for each schedule.
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

// Runs forwards only, for stages placed in any way. A microbatch enters the first stage as soon as this rank has run the
// forwards of earlier microbatches that it has by then, so a rank waits only while the pipeline fills and drains, and
// the number of transfers in flight does not grow with M.
[[nodiscard]] RankProgram forward_order(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches);

// Runs all forwards stage by stage, then all backwards in the opposite order (GPipe, looped breadth-first). Keeps V M
// live microbatches.
[[nodiscard]] RankProgram breadth_first_order(const StagePlacement& stages, std::int64_t rank,
                                              std::int64_t num_microbatches);

// Runs each microbatch through all stages of the rank and back before the next one. Only for pipelines of one rank.
[[nodiscard]] RankProgram depth_first_order(const StagePlacement& stages, std::int64_t rank,
                                            std::int64_t num_microbatches);

// Runs one forward and one backward in turn (1F1B), interleaved over the stages of a rank if it has several. Only for
// stages in a loop, with config.num_stages_per_rank stages a rank. Microbatches go through all stages of a rank in
// groups of at least P, or of M if M < P. The sizes of groups differ by at most one; larger groups come first.
[[nodiscard]] RankProgram one_f_one_b_order(const StagePlacement& stages, std::int64_t rank,
                                            std::int64_t num_microbatches, const OneFOneBScheduleConfig& config);

// Runs the ZB-V schedule; only for stages placed as a V, V = 2. Keeps at most 2 P live microbatches.
[[nodiscard]] RankProgram zero_bubble_v_order(const StagePlacement& stages, std::int64_t rank,
                                              std::int64_t num_microbatches);

// Runs the DualPipeV schedule; only for stages placed as a V, V = 2, and M >= 2 P. Keeps at most 2 P + 1 live
// microbatches.
[[nodiscard]] RankProgram dual_pipe_v_order(const StagePlacement& stages, std::int64_t rank,
                                            std::int64_t num_microbatches);

}  // namespace d9d
