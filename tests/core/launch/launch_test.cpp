#include "d9d/core/launch/launch.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace d9d::test::launch_test {
namespace {

using ::testing::HasSubstr;

const TestProgram kThrowsNumber("throws_a_number", [] {
  return launch({.device = DeviceChoice::kCpu}, {}, [](DistContext& /*context*/) { throw 7; });
});

TEST(Launch, Reports_what_is_no_exception) {
  const Result result = Program("throws_a_number", {}).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("error: an exception that is no std::exception"));
}

const TestProgram kManyThreads("many_threads", [] {
  return launch({.device = DeviceChoice::kCpu, .num_threads = 100'000}, {}, [](DistContext& /*context*/) {});
});

TEST(Launch, Refuses_more_threads_than_would_ever_run) {
  const Result result = Program("many_threads", {}).wait();
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.errors, HasSubstr("expected launch.num_threads of at most"));
}

// ---- Ranks that another launcher names. ----

const TestProgram kFourRanks("four_ranks", [] {
  return launch({.device = DeviceChoice::kCpu}, {.data_parallel_replicate = 4},
                [](DistContext& context) { context.log().info("runs"); });
});
const TestProgram kOneRank("one_rank", [] {
  return launch({.device = DeviceChoice::kCpu}, {}, [](DistContext& context) { context.log().info("runs"); });
});

// Of a batch script of four tasks.
const Program::Variables kBatchScript = {{"SLURM_PROCID", "0"},     {"SLURM_NTASKS", "4"},
                                         {"SLURM_LOCALID", "0"},    {"SLURM_NODEID", "0"},
                                         {"SLURM_NNODES", "1"},     {"SLURM_TASKS_PER_NODE", "4"},
                                         {"SLURM_JOB_ID", "70123"}, {"SLURM_JOB_NODELIST", "localhost"},
                                         {"SLURM_STEP_ID", ""},     {"SLURM_STEPID", ""}};

TEST(Launch, Compares_the_mesh_with_the_launcher_before_ranks_meet) {
  const Result result = Program("one_rank", kBatchScript).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors,
              ::testing::AllOf(HasSubstr("expected a mesh of the 4 ranks that SLURM_PROCID and SLURM_NTASKS of the "
                                         "environment name, got 1 in mesh pipeline_parallel=1"),
                               HasSubstr("No srun has started this process"), HasSubstr("unset SLURM_PROCID")));
  const Result left_over = Program("four_ranks", {{"RANK", "0"},
                                                  {"WORLD_SIZE", "2"},
                                                  {"LOCAL_RANK", "0"},
                                                  {"LOCAL_WORLD_SIZE", "2"},
                                                  {"MASTER_ADDR", "127.0.0.1"},
                                                  {"MASTER_PORT", "29512"}})
                               .wait();
  EXPECT_EQ(left_over.exit_code, 1);
  EXPECT_THAT(left_over.errors, HasSubstr("expected a mesh of the 2 ranks that RANK and WORLD_SIZE of the environment "
                                          "name, got 4"));
}

// ---- Two launches. ----

int launch_twice(RankPlacement ranks) {
  int exit_code = 0;
  for (const char* part : {"first", "second"}) {
    exit_code += launch({.device = DeviceChoice::kCpu, .ranks = ranks}, {.data_parallel_replicate = 2},
                        [&](DistContext& context) {
                          if (context.is_main_process()) context.log().info("part ", part);
                        });
  }
  return exit_code;
}
const TestProgram kTwiceThreads("twice_threads", [] { return launch_twice(RankPlacement::kThreads); });
const TestProgram kTwiceProcesses("twice_processes", [] { return launch_twice(RankPlacement::kProcesses); });

TEST(Launch, Happens_twice_over_threads_and_once_over_processes) {
  const Result threads = Program("twice_threads", {}).wait();
  EXPECT_EQ(threads.exit_code, 0) << threads.errors;
  EXPECT_THAT(threads.errors, ::testing::AllOf(HasSubstr("part first"), HasSubstr("part second")));
  const Result processes = Program("twice_processes", {}).wait();
  EXPECT_NE(processes.exit_code, 0);
  EXPECT_THAT(processes.errors, HasSubstr("expected one launch in a program whose ranks are processes, got a second"));
}

// ---- An error that does not take what comes after it. ----

int fail_at_end(RankPlacement ranks) {
  return launch({.device = DeviceChoice::kCpu, .ranks = ranks}, {.data_parallel_replicate = 2},
                [](DistContext& context) {
                  context.fail_at_end("the disk is full.");
                  context.fail_at_end("and more.");
                  // The other rank has returned: its exit must not end this one.
                  if (context.is_main_process()) context.log().info("exported");
                });
}
const TestProgram kEndsThreads("ends_threads", [] { return fail_at_end(RankPlacement::kThreads); });
const TestProgram kEndsProcesses("ends_processes", [] { return fail_at_end(RankPlacement::kProcesses); });

TEST(Launch, Ends_with_an_error_that_the_program_outlived) {
  for (const char* name : {"ends_threads", "ends_processes"}) {
    const Result result = Program(name, {}).wait();
    EXPECT_EQ(result.exit_code, 1) << name;
    EXPECT_THAT(result.errors, ::testing::AllOf(HasSubstr("INFO - exported"), HasSubstr("the disk is full.")));
    EXPECT_THAT(result.errors, ::testing::Not(HasSubstr("and more"))) << name;
  }
}

// ---- A program that a signal has stopped early. ----

int stop_by_signal(RankPlacement ranks, std::int64_t num_ranks) {
  return launch({.device = DeviceChoice::kCpu, .ranks = ranks}, {.data_parallel_replicate = num_ranks},
                [](DistContext& context) {
                  context.stopped_by(SIGTERM);
                  // Another rank has returned: its exit must not end this one.
                  if (context.is_main_process()) context.log().info("closed");
                });
}
const TestProgram kStopsAlone("stops_alone", [] { return stop_by_signal(RankPlacement::kThreads, 1); });
const TestProgram kStopsThreads("stops_threads", [] { return stop_by_signal(RankPlacement::kThreads, 2); });
const TestProgram kStopsProcesses("stops_processes", [] { return stop_by_signal(RankPlacement::kProcesses, 2); });

TEST(Launch, Returns_the_signal_that_has_stopped_the_program) {
  for (const char* name : {"stops_alone", "stops_threads", "stops_processes"}) {
    const Result result = Program(name, {}).wait();
    EXPECT_EQ(result.exit_code, 128 + SIGTERM) << name;
    EXPECT_THAT(result.errors, ::testing::AllOf(HasSubstr("INFO - closed"), ::testing::Not(HasSubstr("error"))));
  }
}

}  // namespace
}  // namespace d9d::test::launch_test
