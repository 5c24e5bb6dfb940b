#include "d9d/tracker/tracker.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/tracker/build_tracker.h"
#include "d9d/tracker/log_tracker.h"
#include "d9d/tracker/multi_tracker.h"
#include "d9d/tracker/null_tracker.h"
#include "d9d/tracker/run_info.h"

namespace d9d::tracker_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Records every call as text.
class NotingTracker final : public Tracker {
 public:
  explicit NotingTracker(std::vector<std::string>& notes, std::string failing_call = "")
      : notes_(notes), failing_call_(std::move(failing_call)) {}

  [[nodiscard]] std::unique_ptr<TrackerRun> open(const RunInfo& info) const override {
    notes_.push_back("open " + info.name + ' ' + info.resume_state.dump());
    return std::make_unique<Run>(notes_, failing_call_);
  }

 private:
  class Run final : public TrackerRun {
   public:
    Run(std::vector<std::string>& notes, std::string failing_call)
        : notes_(notes), failing_call_(std::move(failing_call)) {}
    ~Run() override { close_in_destructor(); }
    [[nodiscard]] nlohmann::ordered_json state() const override { return {{"writes", num_writes_}}; }

   private:
    void note(const std::string& call) {
      notes_.push_back(call);
      if (call == failing_call_) throw IoError(call);
    }
    void do_write(const TrackerPoint& point, const TrackerValue&) override {
      ++num_writes_;
      note("write " + point.name);
    }
    void do_flush() override { note("flush"); }
    void do_close(RunOutcome outcome) override {
      note(outcome == RunOutcome::kCompleted ? "close completed" : "close failed");
    }

    std::vector<std::string>& notes_;
    std::string failing_call_;
    int num_writes_ = 0;
  };

  std::vector<std::string>& notes_;
  std::string failing_call_;
};

TEST(TrackerRun, Closes_once_and_with_the_first_outcome) {
  std::vector<std::string> notes;
  {
    const auto run = NotingTracker(notes).open({.name = "a"});
    run->close(RunOutcome::kCompleted);
    run->close(RunOutcome::kFailed);
  }
  EXPECT_THAT(notes, ElementsAre("open a null", "close completed"));
}

TEST(TrackerRun, Destroyed_while_open_closes_as_failed) {
  std::vector<std::string> notes;
  EXPECT_THROW(
      {
        const auto run = NotingTracker(notes).open({.name = "a"});
        throw StateError("the training went wrong");
      },
      StateError);
  EXPECT_THAT(notes, ElementsAre("open a null", "close failed"));
}

TEST(TrackerRun, Destroyed_while_open_does_not_throw_when_closing_fails) {
  std::vector<std::string> notes;
  EXPECT_NO_THROW({ const auto run = NotingTracker(notes, "close failed").open({.name = "a"}); });
}

TEST(TrackerRun, Refuses_values_after_close_by_name) {
  const auto run = NullTracker().open({.name = "a"});
  run->close(RunOutcome::kCompleted);
  try {
    run->write({.name = "loss", .step = 7}, 1.0);
    FAIL() << "no error";
  } catch (const StateError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'loss'"), HasSubstr("step 7")));
  }
  EXPECT_THROW(run->flush(), StateError);
}

TEST(SeriesName, Joins_context_values_and_name_with_slashes) {
  EXPECT_EQ(series_name({.name = "loss"}), "loss");
  EXPECT_EQ(series_name({.name = "metric/accuracy", .context = {{"stage", "train"}, {"dataset", "c4"}}}),
            "c4/train/metric/accuracy");
}

TEST(NullTracker, Accepts_everything_and_has_an_empty_state) {
  const auto run = NullTracker().open({.name = "a", .resume_state = {{"run_id", "of another tracker"}}});
  run->write({.name = "loss"}, 1.0);
  run->write({.name = "experts"}, CountHistogram{{1, 2}});
  EXPECT_EQ(run->state(), nlohmann::ordered_json::object());
}

TEST(LogTracker, Prints_scalars_with_six_digits_and_their_context) {
  std::vector<std::string> lines;
  const Logger logger({.sink = [&](std::string_view line) { lines.emplace_back(line); }});
  const auto run = LogTracker(logger).open({.name = "a"});
  run->write({.name = "loss", .step = 3, .context = {{"stage", "train"}, {"dataset", "c4"}}}, 2.3456789);
  run->write({.name = "lr", .step = 4}, 3e-7);
  run->write({.name = "experts", .step = 4}, CountHistogram{{1, 2}});
  run->close(RunOutcome::kCompleted);
  EXPECT_THAT(lines, ElementsAre(EndsWith(" - INFO - step 3 (dataset=c4, stage=train): loss=2.34568"),
                                 EndsWith(" - INFO - step 4: lr=3e-07"), EndsWith(" - INFO - run 'a' completed")));
}

MultiTracker two_trackers(std::vector<std::string>& first, std::vector<std::string>& second,
                          const std::string& failing_call = "") {
  return MultiTracker({std::make_shared<NotingTracker>(first, failing_call), std::make_shared<NotingTracker>(second)});
}

TEST(MultiTracker, Hands_every_call_to_each_tracker) {
  std::vector<std::string> first, second;
  const auto run = two_trackers(first, second).open({.name = "a"});
  run->write({.name = "loss"}, 1.0);
  run->flush();
  run->close(RunOutcome::kCompleted);
  EXPECT_THAT(first, ElementsAre("open a null", "write loss", "flush", "close completed"));
  EXPECT_EQ(second, first);
}

TEST(MultiTracker, Closes_all_even_when_one_fails_to) {
  std::vector<std::string> first, second;
  const auto run = two_trackers(first, second, "close completed").open({.name = "a"});
  EXPECT_THROW(run->close(RunOutcome::kCompleted), IoError);
  EXPECT_THAT(second, ElementsAre("open a null", "close completed"));
}

TEST(MultiTracker, Destroyed_while_open_closes_each_as_failed) {
  std::vector<std::string> first, second;
  { const auto run = two_trackers(first, second).open({.name = "a"}); }
  EXPECT_THAT(first, ElementsAre("open a null", "close failed"));
  EXPECT_EQ(second, first);
}

TEST(MultiTracker, Resumes_each_tracker_from_its_own_state) {
  std::vector<std::string> first, second;
  const auto tracker = two_trackers(first, second);
  const auto run = tracker.open({.name = "a"});
  run->write({.name = "loss"}, 1.0);
  const auto state = run->state();
  first.clear();
  second.clear();
  const auto resumed = tracker.open({.name = "a", .resume_state = state});
  EXPECT_THAT(first, ElementsAre(R"(open a {"writes":1})"));
  EXPECT_EQ(second, first);
}

TEST(MultiTracker, Starts_fresh_from_the_state_of_another_tracker) {
  std::vector<std::string> first, second;
  const auto run = two_trackers(first, second).open({.name = "a", .resume_state = {{"last_step", 3}}});
  EXPECT_THAT(first, ElementsAre("open a null"));
}

class RefusedTracker : public ::testing::TestWithParam<std::pair<std::string, TrackerConfig>> {};
INSTANTIATE_TEST_SUITE_P(Providers, RefusedTracker,
                         ::testing::Values(std::pair{"aim", TrackerConfig(AimTrackerConfig{})},
                                           std::pair{"wandb", TrackerConfig(WandbTrackerConfig{})},
                                           std::pair{"mlflow", TrackerConfig(MlflowTrackerConfig{})}),
                         [](const auto& provider) { return provider.param.first; });

TEST_P(RefusedTracker, Is_named_together_with_what_to_use_instead) {
  try {
    (void)build_tracker(GetParam().second, Logger());
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr('\'' + GetParam().first + '\''), HasSubstr("not built in this version"),
                                    HasSubstr("Use tensorboard or jsonl")));
  }
}

TEST(BuildTracker, Builds_a_tracker_of_trackers_that_prints_to_the_logger) {
  std::vector<std::string> lines;
  const Logger logger({.sink = [&](std::string_view line) { lines.emplace_back(line); }});
  const MultiTrackerConfig config{.trackers = {NullTrackerConfig{}, LogTrackerConfig{}}};
  build_tracker(config, logger)->open({.name = "a"})->write({.name = "loss", .step = 1}, 2.0);
  EXPECT_THAT(lines, ElementsAre(EndsWith("step 1: loss=2"), EndsWith("run 'a' failed")));
}

}  // namespace
}  // namespace d9d::tracker_test
