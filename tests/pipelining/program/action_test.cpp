#include "d9d/pipelining/program/action.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/pipeline_program.h"

#include "tests/pipelining/golden_schedules.h"

namespace d9d::action_test {
namespace {

TEST(Action, Text_is_stage_symbol_microbatch) {
  EXPECT_EQ(to_text(ComputeAction(BackwardInputAction{.stage = {12}, .microbatch = {3}})), "12I3");
  EXPECT_EQ(to_text(MessageAction(ReceiveBackwardAction{.stage = {0}, .microbatch = {10}})), "0RECV_B10");
  EXPECT_EQ(parse_action("3F0|2B1"),
            Action(ComposedAction{.parts = {ForwardAction{.stage = {3}, .microbatch = {0}},
                                            BackwardAction{.stage = {2}, .microbatch = {1}}}}));
}

TEST(Action, Programs_come_back_from_their_text) {
  for (const auto& golden : test::golden_configurations()) {
    const auto program = test::golden_computations(golden.schedule, golden.num_ranks, golden.num_microbatches);
    EXPECT_EQ(parse_program(to_text(program)), program) << golden.schedule;
  }
  const std::string all = "0F1 1B0 2I7 3W7 0SEND_F1 1RECV_F1 1SEND_B1 0RECV_B1 3F0|2B1";
  EXPECT_EQ(to_text(parse_rank_program("  " + all + "\n")), all);
}

TEST(Action, Names_what_is_no_action) {
  for (const char* text : {"F0", "0F", "0X0", "-1F0", "0F0x", "0F0|", "|0F0", "0F-1", "0RECV0", "0 F0"}) {
    EXPECT_THROW((void)parse_rank_program(text), ConfigError) << text;
  }
  try {
    (void)parse_rank_program("0F0 0F0|0SEND_F0");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("0SEND_F0"));
  }
}

TEST(PipelineProgram, Text_says_which_rank_has_which_stage) {
  const auto program = parse_program("# a V\nr0: 0F0 3F0 3B0 0B0\n\nr1: 1F0 2F0 2B0 1B0  # there and back\n");
  EXPECT_EQ(program.stages, StagePlacement::v(2, 2));
  EXPECT_EQ(program.num_microbatches, 1);
  EXPECT_THROW((void)parse_program("r0: 0F0\nr2: 1F0\n"), ConfigError);
  EXPECT_THROW((void)parse_program("r0: 0F0\nr1: 0B0\n"), ConfigError);
  EXPECT_THROW((void)parse_program("r0: 0F0\nr1: 2F0\n"), ConfigError);
  EXPECT_THROW((void)parse_program("0F0\n"), ConfigError);
  EXPECT_THROW((void)parse_program(""), ConfigError);
}

TEST(StagePlacement, Lays_stages_in_a_loop_or_a_V) {
  using ::testing::ElementsAre;
  EXPECT_THAT(StagePlacement::loop(4, 2).stages_of(1), ElementsAre(StageIndex{1}, StageIndex{5}));
  EXPECT_THAT(StagePlacement::v(4, 3).stages_of(1), ElementsAre(StageIndex{1}, StageIndex{6}, StageIndex{9}));
  EXPECT_EQ(StagePlacement::v(4, 2).rank_of({7}), 0);
  EXPECT_THROW((void)StagePlacement::loop(0, 1), ConfigError);
  EXPECT_THROW(StagePlacement({0, 2}), ConfigError);
}

}  // namespace
}  // namespace d9d::action_test
