// A stage of a pipeline that throws or hangs in forward or backward ends the job on all ranks, with the cause, in time.
#include <chrono>
#include <latch>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/run/pipeline_job.h"

namespace d9d::test::failing_pipeline_test {
namespace {

using pipeline::PipelineJob;
using pipeline::train;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kStepTimeout = 1;
constexpr std::chrono::seconds kPromise{5};                   // allowed in addition to the timeout
constexpr int kFailingCall = pipeline::kNumMicrobatches + 3;  // in the second step, to which step_timeout applies

enum class Place { kForward, kBackward };

// Calls fail() in a forward of the second step, or in its backward.
struct FailingHook final : ModuleHook {
  FailingHook(Place failing_place, std::function<void()> failure) : place(failing_place), fail(std::move(failure)) {}
  void before_forward(Module&, const TensorRefs&) override {
    if (++num_calls == kFailingCall && place == Place::kForward) fail();
  }
  void after_forward(Module&, const TensorRefs& outputs) override {
    if (num_calls != kFailingCall || place != Place::kBackward) return;
    for (const at::Tensor& output : outputs) {
      if (output.requires_grad()) output.register_hook([fail = fail](const at::Tensor&) { fail(); });
    }
  }
  const Place place;
  const std::function<void()> fail;
  int num_calls = 0;
};

// Counts down when its stage ends.
struct EndHook final : ModuleHook {
  explicit EndHook(std::latch& of_stages) : ends(of_stages) {}
  ~EndHook() override { ends.count_down(); }
  void before_forward(Module&, const TensorRefs&) override {}
  void after_forward(Module&, const TensorRefs&) override {}
  std::latch& ends;
};

struct Case {
  RankBackend backend;
  PipelineScheduleConfig schedule;
  std::int64_t stage;  // the failing stage, of two or four
  Place place;
};

// Each case hangs once, for the length of the timeout.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const RankBackend backend : {RankBackend::kThreads, RankBackend::kGloo}) {
    all.push_back({backend, OneFOneBScheduleConfig{}, 0, Place::kBackward});
    all.push_back({backend, OneFOneBScheduleConfig{}, 1, Place::kForward});
    all.push_back({backend, ZeroBubbleVScheduleConfig{}, 1, Place::kForward});
    all.push_back({backend, ZeroBubbleVScheduleConfig{}, 2, Place::kBackward});
  }
  return all;
}

class FailingPipeline : public ::testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] static std::int64_t num_stages() {
    return std::holds_alternative<OneFOneBScheduleConfig>(GetParam().schedule) ? 2 : 4;
  }
  // The stages lie in sequence, or as a V.
  [[nodiscard]] static std::int64_t rank_of(std::int64_t stage) {
    return num_stages() == 2 ? stage : std::min(stage, 3 - stage);
  }
  // others: counts down when a stage of the other rank ends.
  [[nodiscard]] static PipelineJob job(const std::function<void()>& fail, std::latch& others) {
    return {.mesh = {.pipeline_parallel = 2},
            .schedule = GetParam().schedule,
            .step_timeout = kStepTimeout,
            .backend = GetParam().backend,
            .on_stage = [fail, &others](const PipelineStageInfo& stage, Module& module) {
              const std::int64_t index = stage.current_stage, failing = GetParam().stage;
              if (index == failing) module.add_hook(std::make_shared<FailingHook>(GetParam().place, fail));
              if (rank_of(index) != rank_of(failing)) module.add_hook(std::make_shared<EndHook>(others));
            }};
  }
};

TEST_P(FailingPipeline, That_throws_is_the_error_of_all) {
  std::latch others(num_stages() / 2);
  const auto fail = [] { throw IoError("[test] the stage breaks"); };
  EXPECT_THAT(
      [&] { (void)train(job(fail, others)); },
      ThrowsMessage<Error>(AllOf(HasSubstr("[test] the stage breaks"),
                                 HasSubstr(cat("stage ", GetParam().stage, ", microbatch ")), HasSubstr("of step 1"))));
}

TEST_P(FailingPipeline, That_hangs_is_told_in_time_by_the_other_rank) {
  std::latch others(num_stages() / 2);
  std::chrono::steady_clock::time_point begin;
  const auto hang = [&] {
    begin = std::chrono::steady_clock::now();
    others.wait();
  };
  EXPECT_THAT([&] { (void)train(job(hang, others)); },
              ThrowsMessage<Error>(AllOf(HasSubstr("waited 1 s"), HasSubstr(cat("rank ", rank_of(GetParam().stage))))));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(kStepTimeout) + kPromise);
}

INSTANTIATE_TEST_SUITE_P(Each, FailingPipeline, ::testing::ValuesIn(cases()), [](const auto& param_info) {
  const Case& one = param_info.param;
  return cat(to_string(one.backend), one.place == Place::kForward ? "_forward" : "_backward", "_of_stage_", one.stage,
             std::holds_alternative<OneFOneBScheduleConfig>(one.schedule) ? "_of_2" : "_of_4");
});

}  // namespace
}  // namespace d9d::test::failing_pipeline_test
