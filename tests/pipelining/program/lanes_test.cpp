// The stream of each computation of a program. The plan alone decides it.
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/pipelining/program/rank_plan.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d::lanes_test {
namespace {

using Parts = std::vector<PlannedCompute>;

std::vector<Parts> computations(const RankPlan& plan) {
  std::vector<Parts> all;
  for (const PlannedStep& step : plan) {
    if (const auto* const parts = std::get_if<Parts>(&step)) all.push_back(*parts);
  }
  return all;
}

std::vector<RankPlan> plans_of(const PipelineProgram& program) {
  std::vector<RankPlan> plans;
  for (std::int64_t rank = 0; rank < program.stages.num_ranks(); ++rank) plans.push_back(plan_rank(program, rank));
  return plans;
}

// P = 1, 2, 4 and M from 2 P: steps of dual_pipe_v.
template <class Check>
void for_each_rank_of_dual_pipe_v(const Check& check) {
  for (const std::int64_t num_ranks : {1, 2, 4}) {
    for (const std::int64_t num_microbatches : {2 * num_ranks, 2 * num_ranks + 1, 5 * num_ranks}) {
      const auto program = build_program(schedule_of(DualPipeVScheduleConfig{}), num_ranks, num_microbatches);
      for (const RankPlan& plan : plans_of(program)) {
        SCOPED_TRACE(testing::Message() << num_ranks << " ranks, " << num_microbatches << " microbatches");
        check(plan, num_microbatches == 5 * num_ranks);
      }
    }
  }
}

TEST(ComputeStreams, Of_composed_computations_are_both) {
  for_each_rank_of_dual_pipe_v([](const RankPlan& plan, bool is_long) {
    std::size_t num_composed = 0;
    std::set<std::int64_t> of_forwards;
    for (const Parts& parts : computations(plan)) {
      if (parts.size() == 1) continue;
      ++num_composed;
      EXPECT_TRUE(can_run_at_once(parts));
      EXPECT_EQ(parts[0].lane + parts[1].lane, 1) << to_text(parts[0].action) << "|" << to_text(parts[1].action);
      of_forwards.insert(parts[holds<ForwardAction>(parts[0].action) ? 0 : 1].lane);
    }
    EXPECT_GT(num_composed, 0U);
    EXPECT_TRUE(of_forwards.size() == 2 || !is_long);  // in the long run microbatches alternate
  });
}

TEST(ComputeStreams, Of_a_backward_and_of_both_its_halves_are_those_of_their_forward) {
  for_each_rank_of_dual_pipe_v([](const RankPlan& plan, bool /*is_long*/) {
    std::map<std::pair<StageIndex, MicrobatchIndex>, std::int64_t> of_forward;
    std::size_t num_later = 0;
    for (const Parts& parts : computations(plan)) {
      for (const PlannedCompute& part : parts) {
        const std::pair key(stage_of(part.action), microbatch_of(part.action));
        if (holds<ForwardAction>(part.action)) {
          EXPECT_TRUE(parts.size() == 2 || part.lane == 0);
          of_forward[key] = part.lane;
          continue;
        }
        EXPECT_EQ(part.lane, of_forward.at(key)) << to_text(part.action);
        num_later += part.lane == 1 ? 1 : 0;
      }
    }
    EXPECT_GT(num_later, 0U);
  });
}

TEST(ComputeStreams, Of_programs_without_composed_computations_are_one) {
  for (const PipelineSchedule& schedule : {schedule_of(GPipeScheduleConfig{}), schedule_of(OneFOneBScheduleConfig{}),
                                           schedule_of(ZeroBubbleVScheduleConfig{})}) {
    for (const RankPlan& plan : plans_of(build_program(schedule, 2, 6))) {
      for (const Parts& parts : computations(plan)) {
        for (const PlannedCompute& part : parts) EXPECT_EQ(part.lane, 0) << to_text(part.action);
      }
    }
  }
}

TEST(ComputeStreams, Are_one_where_both_computations_are_of_one_stage) {
  PipelineProgram program = build_program(schedule_of(OneFOneBScheduleConfig{}), 1, 2);
  program.ranks = {parse_rank_program("0F0 0F1|0B0 0B1")};
  const auto all = computations(plan_rank(program, 0));
  ASSERT_EQ(all.size(), 3U);
  EXPECT_FALSE(can_run_at_once(all[1]));
  for (const Parts& parts : all) {
    for (const PlannedCompute& part : parts) EXPECT_EQ(part.lane, 0) << to_text(part.action);
  }
}

}  // namespace
}  // namespace d9d::lanes_test
