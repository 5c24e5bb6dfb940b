#include "d9d/pipelining/schedules/pipeline_schedule.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/pipelining/program/live_microbatches.h"
#include "d9d/pipelining/program/validate.h"
#include "d9d/pipelining/schedules/compute_order.h"

#include "tests/pipelining/golden_schedules.h"
#include "tests/pipelining/random_pipelines.h"

namespace d9d::pipeline_schedule_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;

std::vector<std::int64_t> peaks(const PipelineScheduleConfig& config, std::int64_t num_ranks,
                                std::int64_t num_microbatches) {
  return peak_live_microbatches(build_compute_program(schedule_of(config), num_ranks, num_microbatches));
}

TEST(PipelineSchedule, Any_number_of_ranks_stages_and_microbatches_is_valid_and_cannot_hang) {
  for (std::int64_t num_ranks = 1; num_ranks <= 5; ++num_ranks) {
    for (std::int64_t num_microbatches = 1; num_microbatches <= 11; ++num_microbatches) {
      std::vector<PipelineScheduleConfig> configs = {GPipeScheduleConfig{}, InferenceScheduleConfig{},
                                                     ZeroBubbleVScheduleConfig{}};
      if (num_microbatches >= 2 * num_ranks) configs.push_back(DualPipeVScheduleConfig{});
      for (std::int64_t v = 1; v <= 4; ++v) {
        configs.push_back(LoopedBfsScheduleConfig{v});
        configs.push_back(OneFOneBScheduleConfig{v, false});
        configs.push_back(OneFOneBScheduleConfig{v, false, OneFOneBDepth::kClassic});
        configs.push_back(OneFOneBScheduleConfig{v, true});
      }
      for (const auto& config : configs) {
        const auto schedule = schedule_of(config);
        for (const auto slots : {0, 2}) {
          EXPECT_NO_THROW((void)build_program(schedule, num_ranks, num_microbatches, {.num_inbox_slots = slots}))
              << schedule.name << ", P = " << num_ranks << ", M = " << num_microbatches << ", slots " << slots;
        }
      }
    }
  }
}

// Delays of a run are not known in advance: a program with messages placed for some costs must not hang with others.
TEST(PipelineSchedule, Messages_placed_for_any_costs_cannot_hang) {
  EXPECT_TRUE(rc::check([] {
    const auto pipeline = *test::random_pipeline();
    const auto costs = *test::random_costs(pipeline.stages.num_stages());
    const auto slots = *rc::gen::element<std::optional<std::int64_t>>(std::nullopt, 0, 1, 2, 3);
    const auto program = insert_messages(pipeline, {.num_inbox_slots = slots, .costs = costs});
    validate(program, {.num_inbox_slots = slots});
    RC_ASSERT(compute_only(program) == pipeline);
    RC_ASSERT(parse_program(to_text(program)) == program);
    validate(place_messages_by_sweep(pipeline), {.num_inbox_slots = 0});
  }));
}

TEST(PipelineSchedule, Keeps_no_more_microbatches_than_its_bound) {
  for (std::int64_t num_ranks = 2; num_ranks <= 8; ++num_ranks) {
    for (const std::int64_t m : {1, 2, 3, 5, 8, 13, 24}) {
      const auto per_rank = [&](auto&& bound) {
        std::vector<std::int64_t> result;
        for (std::int64_t rank = 0; rank < num_ranks; ++rank) result.push_back(std::min(bound(rank), m));
        return result;
      };
      EXPECT_EQ(peaks(OneFOneBScheduleConfig{1, false}, num_ranks, m),
                per_rank([&](std::int64_t rank) { return 2 * (num_ranks - 1 - rank) + 1; }));
      EXPECT_EQ(peaks(OneFOneBScheduleConfig{1, false, OneFOneBDepth::kClassic}, num_ranks, m),
                per_rank([&](std::int64_t rank) { return num_ranks - rank; }));
      EXPECT_EQ(peaks(OneFOneBScheduleConfig{1, true}, num_ranks, m),
                per_rank([&](std::int64_t) { return num_ranks; }));
      EXPECT_THAT(peaks(GPipeScheduleConfig{}, num_ranks, m), Each(m));
      EXPECT_THAT(peaks(ZeroBubbleVScheduleConfig{}, num_ranks, m), Each(Le(2 * std::min(num_ranks, m))));
      if (m >= 2 * num_ranks) {
        EXPECT_THAT(peaks(ZeroBubbleVScheduleConfig{}, num_ranks, m), Each(2 * num_ranks));
        EXPECT_THAT(peaks(DualPipeVScheduleConfig{}, num_ranks, m), Each(2 * num_ranks + 1));
      }
      EXPECT_THAT(peaks(InferenceScheduleConfig{}, num_ranks, m), Each(0));
    }
  }
}

TEST(PipelineSchedule, One_stage_is_one_microbatch_after_the_other) {
  for (const PipelineScheduleConfig& config :
       {PipelineScheduleConfig(GPipeScheduleConfig{}), PipelineScheduleConfig(LoopedBfsScheduleConfig{1}),
        PipelineScheduleConfig(OneFOneBScheduleConfig{1, false}),
        PipelineScheduleConfig(OneFOneBScheduleConfig{1, true})}) {
    EXPECT_EQ(to_text(build_program(schedule_of(config), 1, 3)), "r0: 0F0 0B0 0F1 0B1 0F2 0B2\n");
  }
  EXPECT_EQ(to_text(build_program(schedule_of(InferenceScheduleConfig{}), 1, 2)), "r0: 0F0 0F1\n");
}

TEST(PipelineSchedule, Groups_of_microbatches_may_be_uneven) {
  const auto program = build_compute_program(schedule_of(OneFOneBScheduleConfig{2, false}), 2, 5);
  EXPECT_EQ(to_text(program.ranks[1]),
            "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1F3 1B0 1F4 1B1 3F3 1B2 3F4 3B3 3B4 1B3 1B4");
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PipelineSchedule, Refuses_what_it_cannot_run) {
  EXPECT_THAT(error_of([] { (void)build_program(schedule_of(DualPipeVScheduleConfig{}), 4, 7); }),
              HasSubstr("expected at least 2 microbatches a rank, 8 for 4 ranks, got 7"));
  EXPECT_THAT(error_of([] { (void)build_program(schedule_of(DualPipeVScheduleConfig{}), 1, 1); }),
              HasSubstr("dual_pipe_v"));
  EXPECT_THAT(error_of([] { (void)build_program(schedule_of(GPipeScheduleConfig{}), 4, 0); }), HasSubstr("gpipe"));
  EXPECT_THAT(error_of([] { (void)build_program(schedule_of(LoopedBfsScheduleConfig{0}), 4, 4); }),
              HasSubstr("0 stages"));
  EXPECT_THAT(error_of([] { (void)zero_bubble_v_order(StagePlacement::v(2, 3), 0, 4); }),
              HasSubstr("2 stages a rank as a V"));
  EXPECT_THAT(error_of([] { (void)dual_pipe_v_order(StagePlacement::loop(2, 2), 0, 4); }),
              HasSubstr("2 stages a rank as a V"));
  EXPECT_THAT(error_of([] { (void)one_f_one_b_order(StagePlacement::v(2, 2), 0, 4, {.num_stages_per_rank = 2}); }),
              HasSubstr("in a loop"));
}

TEST(PipelineSchedule, A_schedule_of_ones_own_is_checked) {
  const PipelineSchedule forgets_last{
      .name = "forgets",
      .placement = [](std::int64_t num_ranks) { return StagePlacement::loop(num_ranks, 1); },
      .order =
          [](const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
            auto program = breadth_first_order(stages, rank, num_microbatches);
            if (rank == 1) program.pop_back();
            return program;
          }};
  try {
    (void)build_program(forgets_last, 2, 2);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 never runs B or I of stage 1, microbatch 0"));
  }
}

TEST(PipelineSchedule, A_schedule_of_ones_own_has_a_placement_and_an_order) {
  const auto loop = [](std::int64_t num_ranks) { return StagePlacement::loop(num_ranks, 1); };
  for (const PipelineSchedule& own : {PipelineSchedule{.name = "own", .placement = loop, .order = nullptr},
                                      PipelineSchedule{.name = "own", .placement = nullptr, .order = forward_order}}) {
    EXPECT_THAT(error_of([&] { (void)build_program(own, 2, 2); }),
                HasSubstr("expected a placement and an order of own, got none"));
  }
}

TEST(PipelineSchedule, Depth_is_a_key) {
  const auto parse = [](const char* text) { return parse_record<OneFOneBScheduleConfig>(Json::parse(text)); };
  EXPECT_EQ(parse(R"({"schedule": "1f1b", "num_stages_per_rank": 1, "zero_bubble": false})").depth,
            OneFOneBDepth::kDouble);
  EXPECT_EQ(parse(R"({"schedule": "1f1b", "num_stages_per_rank": 1, "zero_bubble": false, "depth": "classic"})").depth,
            OneFOneBDepth::kClassic);
}

TEST(PipelineScheduleConfig, Of_auto_is_read_and_stands_for_no_schedule_yet) {
  const auto config = parse_record<PipelineScheduleConfig>(
      Json::parse(R"({"schedule": "auto", "schedules": ["1f1b", "zero_bubble_v"], "max_bytes": 1000})"));
  const auto& automatic = std::get<AutoScheduleConfig>(config);
  EXPECT_EQ(automatic.schedules, (std::vector{ScheduleKind::kOneFOneB, ScheduleKind::kZeroBubbleV}));
  EXPECT_EQ(automatic.max_bytes, 1000);
  EXPECT_EQ(automatic.max_stages_per_rank, 4);
  EXPECT_THROW(
      (void)parse_record<PipelineScheduleConfig>(Json::parse(R"({"schedule": "auto", "schedules": ["inference"]})")),
      ConfigError);
  EXPECT_THROW((void)schedule_of(config), ConfigError);
}

}  // namespace
}  // namespace d9d::pipeline_schedule_test
