#include "d9d/pipelining/schedules/pipeline_schedule.h"

#include <utility>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/validate.h"
#include "d9d/pipelining/schedules/compute_order.h"

namespace d9d {
namespace {

auto loop_of(std::int64_t num_stages_per_rank) {
  return [=](std::int64_t num_ranks) { return StagePlacement::loop(num_ranks, num_stages_per_rank); };
}
StagePlacement v_of_two(std::int64_t num_ranks) { return StagePlacement::v(num_ranks, 2); }

// Returns `order`, except that a pipeline with only one stage, where nothing can be interleaved, gets
// depth_first_order.
template <class Order>
auto unless_one_stage(Order order) {
  return [order = std::move(order)](const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
    return stages.num_stages() == 1 ? depth_first_order(stages, rank, num_microbatches)
                                    : order(stages, rank, num_microbatches);
  };
}

PipelineSchedule schedule_for(const GPipeScheduleConfig&) {
  return {.name = "gpipe", .placement = loop_of(1), .order = unless_one_stage(breadth_first_order)};
}
PipelineSchedule schedule_for(const InferenceScheduleConfig&) {
  return {.name = "inference", .placement = loop_of(1), .order = forward_order};
}
PipelineSchedule schedule_for(const LoopedBfsScheduleConfig& config) {
  return {.name = cat("looped_bfs, V = ", config.num_stages_per_rank),
          .placement = loop_of(config.num_stages_per_rank),
          .order = unless_one_stage(breadth_first_order)};
}
PipelineSchedule schedule_for(const OneFOneBScheduleConfig& config) {
  const bool is_classic = config.depth == OneFOneBDepth::kClassic && !config.zero_bubble;
  return {.name = cat("1f1b, V = ", config.num_stages_per_rank, config.zero_bubble ? ", zero bubble" : "",
                      is_classic ? ", classic depth" : ""),
          .placement = loop_of(config.num_stages_per_rank),
          .order = unless_one_stage([config](const auto& stages, std::int64_t rank, std::int64_t num_microbatches) {
            return one_f_one_b_order(stages, rank, num_microbatches, config);
          })};
}
PipelineSchedule schedule_for(const ZeroBubbleVScheduleConfig&) {
  return {.name = "zero_bubble_v", .placement = v_of_two, .order = zero_bubble_v_order};
}
PipelineSchedule schedule_for(const DualPipeVScheduleConfig&) {
  return {.name = "dual_pipe_v", .placement = v_of_two, .order = dual_pipe_v_order};
}
PipelineSchedule schedule_for(const AutoScheduleConfig&) {
  throw ConfigError(
      "[pipelining::schedule] expected a schedule, got auto, which a training job chooses when it has measured its "
      "stages. Name a schedule, or use choose_schedule() with costs.");
}

}  // namespace

PipelineSchedule schedule_of(const PipelineScheduleConfig& config) {
  return std::visit([](const auto& one) { return schedule_for(one); }, config);
}

PipelineSchedule forwards_on(const StagePlacement& placement) {
  return {.name = "forwards", .placement = [placement](std::int64_t) { return placement; }, .order = forward_order};
}

StagePlacement placement_of(const PipelineSchedule& schedule, std::int64_t num_ranks) {
  D9D_CHECK(schedule.placement && schedule.order, ConfigError,
            "[pipelining::schedule] expected a placement and an order of ", schedule.name, ", got none. Set both.");
  StagePlacement stages = schedule.placement(num_ranks);
  D9D_CHECK(stages.num_ranks() == num_ranks, ConfigError, "[pipelining::schedule] expected ", schedule.name,
            " to place stages on ", num_ranks, " ranks, got ", stages.num_ranks(),
            ". Correct the placement of the schedule.");
  return stages;
}

PipelineProgram build_compute_program(const PipelineSchedule& schedule, std::int64_t num_ranks,
                                      std::int64_t num_microbatches) {
  D9D_CHECK(num_ranks >= 1 && num_microbatches >= 1, ConfigError,
            "[pipelining::schedule] expected at least one rank "
            "and one microbatch for ",
            schedule.name, ", got ", num_ranks, " and ", num_microbatches, ". Change them.");
  PipelineProgram program{.num_microbatches = num_microbatches, .stages = placement_of(schedule, num_ranks)};
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    program.ranks.push_back(schedule.order(program.stages, rank, num_microbatches));
  }
  return program;
}

PipelineProgram build_program(const PipelineSchedule& schedule, std::int64_t num_ranks, std::int64_t num_microbatches,
                              const MessagePlacement& placement) {
  const PipelineProgram computations = build_compute_program(schedule, num_ranks, num_microbatches);
  validate_computations(computations);
  PipelineProgram program = insert_messages(computations, placement);
  validate(program, {.num_inbox_slots = placement.num_inbox_slots});
  return program;
}

}  // namespace d9d
