// A rank that throws or hangs at any stage of a step must end the job on all ranks, with the cause, in time.
#include <chrono>
#include <latch>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::failing_rank_test {
namespace {

using test::RankBackend;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Fail = std::function<void()>;

constexpr std::int64_t kFailingStep = 1;  // a step in which step_timeout applies
constexpr std::int64_t kStepTimeout = 1;
constexpr std::chrono::seconds kPromise{5};

// Fails at one stage of one step.
struct FailingTask : toy::Task {
  FailingTask(std::string failing_stage, Fail failure) : stage(std::move(failing_stage)), fail(std::move(failure)) {}

  void reach(const std::string& here) const {
    if (here == stage && step == kFailingStep) fail();
  }
  void register_events(const DistContext&, EventBus& events) override {
    events.subscribe(kTrainStepPre, [this](const TrainStep& now) { step = now.schedule.current_step(); });
    events.subscribe(kTrainOptimizerStepPre, [this](const TrainStep&) { reach("optimiser"); });
    events.subscribe(kTrainStepPost, [this](const TrainStep&) { reach("end"); });
  }
  ForwardInputs<toy::Types> build_forward_inputs(const toy::Batch& batch) override {
    reach("forward");
    return toy::Task::build_forward_inputs(batch);
  }
  LossResult compute_loss(const Output& output, toy::State& state, const JobSchedule& schedule) override {
    reach("loss");
    output.register_hook([this](const at::Tensor&) { reach("backward"); });
    return toy::Task::compute_loss(output, state, schedule);
  }
  void update_metrics(const toy::State& state, const MetricMap& metrics) override {
    reach("metrics");
    toy::Task::update_metrics(state, metrics);
  }

  const std::string stage;
  const Fail fail;
  std::int64_t step = 0;
};

// Its data stream calls the task, which may fail in that call.
struct FailingProvider : toy::Provider {
  struct Stream {
    std::optional<std::vector<toy::Batch>> next() {
      // Another thread prefetches: the step is that of the pack.
      if (task.stage == "data" && inner.position == kFailingStep) task.fail();
      return inner.next();
    }
    std::optional<std::int64_t> total_steps() const { return inner.total_steps(); }
    nlohmann::json state() const { return inner.state(); }
    void load_state(const nlohmann::json& state) { inner.load_state(state); }
    const FailingTask& task;
    toy::Provider::Stream inner;
  };
  std::unique_ptr<PackStream<toy::Batch>> build_pack_stream(const DistContext&, std::optional<std::int64_t>) override {
    return as_pack_stream<toy::Batch>(Stream{.task = *task, .inner = {.packs = packs, .known_total = {}}});
  }
  const FailingTask* task = nullptr;
};

void train(World& world, FailingTask& task) {
  const DistContext context(
      {.mesh = {.data_parallel_replicate = 2}, .world = test::borrowed(world), .log_sink = [](std::string_view) {}});
  FailingProvider provider;
  provider.task = &task;
  for (std::int64_t step = 0; step < 3; ++step)
    provider.packs.push_back({toy::samples(4 * step + 2 * world.rank(), 2)});
  TrainerConfig config;
  config.schedule.total_steps = 3;
  config.run.name = "toy";
  config.logging.tracker = NullTrackerConfig{};
  config.gc.period_steps = {StepActionMode::kDisable};
  config.checkpointing.period_steps = {StepActionMode::kDisable};
  config.timeout = {.init_timeout = 60, .step_timeout = kStepTimeout};
  toy::DescentProvider optimizer;
  AutoLRSchedulerProvider schedule{PiecewiseConfig{
      .initial_multiplier = 1.0, .phases = {RestPhaseConfig{.target_multiplier = 0.5, .curve = LinearCurveConfig{}}}}};
  Trainer<toy::Types>(
      context, config,
      {.task = task, .model = provider, .data = provider, .optimizer = optimizer, .lr_scheduler = schedule})
      .train();
}

class FailingStage : public ::testing::TestWithParam<std::tuple<RankBackend, std::string>> {
 protected:
  static RankBackend backend() { return std::get<RankBackend>(GetParam()); }
  static const std::string& stage() { return std::get<std::string>(GetParam()); }
};

TEST_P(FailingStage, Of_one_rank_is_the_error_of_all) {
  std::string told;
  EXPECT_THAT(
      [&] {
        test::run_ranks(backend(), 2, [&](World& world) {
          FailingTask task(stage(), [&] { D9D_CHECK(world.rank() == 0, IoError, "[test] rank 1 fails at ", stage()); });
          try {
            train(world, task);
          } catch (const CommunicationError& error) {
            told = error.what();
            throw;
          }
        });
      },
      ::testing::ThrowsMessage<Error>(HasSubstr("rank 1 fails at " + stage())));  // nested in the error of a handler
  EXPECT_THAT(told, HasSubstr("rank 1 fails at " + stage()));
}

TEST_P(FailingStage, Where_one_rank_hangs_is_told_in_time_by_the_others) {
  std::string told;
  std::chrono::steady_clock::duration after = {};
  std::latch others_know(1);
  test::run_ranks(backend(), 2, [&](World& world) {
    const auto begin = std::chrono::steady_clock::now();
    FailingTask task(stage(), [&] {
      if (world.rank() == 1) others_know.wait();
    });
    try {
      train(world, task);
    } catch (const CommunicationError& error) {
      if (world.rank() == 1) return;
      told = error.what();
      after = std::chrono::steady_clock::now() - begin;
    }
    if (world.rank() == 0) others_know.count_down();
  });
  EXPECT_THAT(told, AllOf(HasSubstr("waited 1 s in group '"), HasSubstr("for: rank 1")));
  EXPECT_LT(after, std::chrono::seconds(kStepTimeout) + kPromise);
}

INSTANTIATE_TEST_SUITE_P(Each, FailingStage,
                         ::testing::Combine(::testing::Values(RankBackend::kThreads, RankBackend::kGloo),
                                            ::testing::Values("data", "forward", "loss", "backward", "metrics",
                                                              "optimiser", "end")),
                         [](const auto& param_info) {
                           return cat(test::to_string(std::get<RankBackend>(param_info.param)), "_",
                                      std::get<std::string>(param_info.param));
                         });

}  // namespace
}  // namespace d9d::failing_rank_test
