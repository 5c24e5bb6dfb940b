// The order in which a rank computes, for each schedule. Each function returns the computations of one rank, in order.
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

// Returns an order of forwards only, for stages placed in any way. A microbatch enters the first stage every V
// forwards, V being the largest number of stages of a rank, and each rank runs the earliest microbatch that can have
// arrived. So a rank waits only while the pipeline fills and drains, and the number of transfers in flight does not
// grow with M.
[[nodiscard]] RankProgram forward_order(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches);

// Returns an order that runs all forwards stage by stage, then all backwards in the opposite order (GPipe, looped
// breadth-first). It keeps V M live microbatches.
[[nodiscard]] RankProgram breadth_first_order(const StagePlacement& stages, std::int64_t rank,
                                              std::int64_t num_microbatches);

// Returns an order that runs each microbatch through all stages of the rank and back before the next one. Only for
// pipelines of one rank.
[[nodiscard]] RankProgram depth_first_order(const StagePlacement& stages, std::int64_t rank,
                                            std::int64_t num_microbatches);

// Returns an order that runs one forward and one backward in turn (1F1B), interleaved over the stages of a rank if it
// has several. Only for stages in a loop, with config.num_stages_per_rank stages a rank. Microbatches go through all
// stages of a rank in groups of at least P, or of M if M < P. The sizes of groups differ by at most one; larger groups
// come first.
[[nodiscard]] RankProgram one_f_one_b_order(const StagePlacement& stages, std::int64_t rank,
                                            std::int64_t num_microbatches, const OneFOneBScheduleConfig& config);

// Returns the order of the ZB-V schedule. Only for 2 stages a rank, placed by StagePlacement::v(). It keeps at most 2 P
// live microbatches.
[[nodiscard]] RankProgram zero_bubble_v_order(const StagePlacement& stages, std::int64_t rank,
                                              std::int64_t num_microbatches);

// Returns the order of the DualPipeV schedule. Only for 2 stages a rank, placed by StagePlacement::v(), and M >= 2 P.
// It keeps at most 2 P + 1 live microbatches.
[[nodiscard]] RankProgram dual_pipe_v_order(const StagePlacement& stages, std::int64_t rank,
                                            std::int64_t num_microbatches);

}  // namespace d9d
