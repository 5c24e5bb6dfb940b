// A job that waits for data that never come ends soon after a request to stop, with an error that names the data.
#include <unistd.h>

#include <csignal>
#include <memory>
#include <numeric>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/core/launch/launch.h"
#include "d9d/data/build/make_pack_stream.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/program.h"

namespace d9d::hanging_data_test {
namespace {

using test::Program;
using test::TestProgram;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kDataTimeout = 0.5;  // of each read after the first, and the wait of a job after a request to stop

struct HangingDataset {
  [[nodiscard]] std::int64_t size() const { return 8; }
  [[nodiscard]] std::int64_t get(std::int64_t /*index*/) const {
    while (true) ::pause();
  }
};

struct HangingProvider : toy::Provider {
  std::unique_ptr<PackStream<toy::Batch>> build_pack_stream(const DistContext& context,
                                                            std::optional<std::int64_t>) override {
    const AutoDataConfig config{.global_batch_size = 4, .microbatch_size = 2, .timeout = kDataTimeout};
    const auto collate = [](std::span<const std::int64_t> numbers) {
      return toy::samples(numbers.front(), std::ssize(numbers));
    };
    return make_pack_stream<toy::Batch>(context, std::make_shared<const HangingDataset>(), collate, config, {});
  }
};

int train() {
  return launch({.num_threads = 1}, {}, [](DistContext& context) {
    TrainerConfig config;
    config.schedule.total_steps = 2;
    config.run.name = "hanging";
    config.logging.tracker = NullTrackerConfig{};
    config.checkpointing.period_steps = {StepActionMode::kDisable};
    toy::Task task;
    HangingProvider provider;
    toy::DescentProvider optimizer;
    AutoLRSchedulerProvider lr_scheduler{
        PiecewiseConfig{.initial_multiplier = 1.0,
                        .phases = {RestPhaseConfig{.target_multiplier = 0.5, .curve = LinearCurveConfig{}}}}};
    (void)Trainer<toy::Types>(
        context, config,
        {.task = task, .model = provider, .data = provider, .optimizer = optimizer, .lr_scheduler = lr_scheduler})
        .train();
  });
}

const TestProgram kHangingData("hanging_data", train);

TEST(HangingData, Ends_a_job_that_is_asked_to_stop_soon_with_the_samples) {
  Program program("hanging_data", {});
  ASSERT_TRUE(program.has_written("training hanging"));  // from here on, signals are requests to stop
  program.kill(SIGTERM);
  const test::Result result = program.wait();
  EXPECT_EQ(result.exit_code, 1) << result.errors;
  EXPECT_LT(result.seconds, 20) << "waited for the read that hangs";
  EXPECT_THAT(result.errors, AllOf(HasSubstr("stopping after this step"),
                                   HasSubstr("\nerror: [data::DataLoader] stopped, as asked, in the wait for samples "
                                             "0, 1 of the dataset")));
}

}  // namespace
}  // namespace d9d::hanging_data_test
