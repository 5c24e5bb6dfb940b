#include "d9d/tracker/tracker.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/tracker/build_tracker.h"
#include "d9d/tracker/guarded_tracker.h"
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
    [[nodiscard]] nlohmann::ordered_json state() const override {
      if (failing_call_ == "state" && num_writes_ > 0) throw IoError("state");
      return {{"writes", num_writes_}};
    }

   private:
    void note(const std::string& call) {
      notes_.push_back(call);
      if (call == failing_call_ && call == "write number") throw 7;
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
  const auto run = LogTracker().open({.name = "a", .log = logger});
  run->write({.name = "loss", .step = 3, .context = {{"stage", "train"}, {"dataset", "c4"}}}, 2.3456789);
  run->write({.name = "lr", .step = 4}, 3e-7);
  run->write({.name = "experts", .step = 4}, CountHistogram{{1, 2}});
  run->write({.name = "plot", .step = 4}, TrackerPicture{"<svg/>"});
  run->close(RunOutcome::kCompleted);
  EXPECT_THAT(lines, ElementsAre(EndsWith(" - INFO - step 3 (dataset=c4, stage=train): loss=2.34568"),
                                 EndsWith(" - INFO - step 4: lr=3e-07"), EndsWith(" - INFO - run 'a' completed")));
  LogTracker().open({.name = "b", .log = logger})->close(RunOutcome::kStopped);
  EXPECT_THAT(lines.back(), EndsWith(" - INFO - run 'b' stopped"));
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

TEST(BuildTracker, Builds_a_tracker_of_trackers_that_prints_to_the_logger) {
  std::vector<std::string> lines;
  const Logger logger({.sink = [&](std::string_view line) { lines.emplace_back(line); }});
  const MultiTrackerConfig config{.trackers = {NullTrackerConfig{}, LogTrackerConfig{}}};
  build_tracker(config)->open({.name = "a", .log = logger})->write({.name = "loss", .step = 1}, 2.0);
  EXPECT_THAT(lines, ElementsAre(EndsWith("step 1: loss=2"), EndsWith("run 'a' failed")));
}

TEST(BuildTracker, Builds_one_of_the_program_by_its_name_and_options) {
  std::vector<std::string> notes;
  const TrackerFactories own = {{"noting", [&](const nlohmann::json& options) {
                                   notes.push_back(options.dump());
                                   return std::make_unique<NotingTracker>(notes);
                                 }}};
  const CustomTrackerConfig custom{.name = "noting", .options = {{"path", "a.csv"}}};
  build_tracker(MultiTrackerConfig{.trackers = {NullTrackerConfig{}, custom}}, own)->open({.name = "a"});
  EXPECT_THAT(notes, ElementsAre(R"({"path":"a.csv"})", "open a null", "close failed"));
}

TEST(BuildTracker, Lists_the_trackers_of_the_program_when_the_name_is_none) {
  const TrackerFactories own = {{"csv", {}}, {"noting", {}}};
  EXPECT_THAT([&] { (void)build_tracker(CustomTrackerConfig{.name = "cvs"}, own); },
              ::testing::ThrowsMessage<ConfigError>(AllOf(HasSubstr("'csv', 'noting'"), HasSubstr("'cvs'"))));
  EXPECT_THAT([&] { (void)build_tracker(CustomTrackerConfig{.name = "csv"}); },
              ::testing::ThrowsMessage<ConfigError>(HasSubstr("which has none")));
}

// ---- A tracker that fails. ----

class Guarded : public ::testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<TrackerRun> open(const std::string& failing_call) {
    const GuardedTracker tracker(std::make_shared<NotingTracker>(notes_, failing_call), "noting");
    return tracker.open(
        {.name = "a", .log = Logger({.sink = [this](std::string_view line) { warnings_.emplace_back(line); }})});
  }
  void expect_one_warning(const std::string& reason) {
    EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("WARNING"), HasSubstr("'noting'"), EndsWith(": " + reason))));
  }

  std::vector<std::string> notes_;
  std::vector<std::string> warnings_;
};

TEST_F(Guarded, Passes_everything_on_to_a_tracker_that_works) {
  const auto run = open("");
  run->write({.name = "loss"}, 1.0);
  run->flush();
  EXPECT_EQ(run->state().dump(), R"({"writes":1})");
  run->close(RunOutcome::kCompleted);
  EXPECT_THAT(notes_, ElementsAre("open a null", "write loss", "flush", "close completed"));
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(Guarded, Is_left_alone_after_its_first_failure_and_keeps_the_state_of_the_last_flush) {
  const auto run = open("write lr");
  run->write({.name = "loss"}, 1.0);
  run->flush();
  run->write({.name = "lr"}, 1.0);
  run->write({.name = "loss"}, 2.0);
  run->flush();
  EXPECT_EQ(run->state().dump(), R"({"writes":1})");
  run->close(RunOutcome::kCompleted);
  EXPECT_THAT(notes_, ElementsAre("open a null", "write loss", "flush", "write lr"));
  expect_one_warning("write lr");
}

TEST_F(Guarded, May_fail_to_flush_and_to_close) {
  EXPECT_NO_THROW(open("flush")->flush());
  expect_one_warning("flush");
  warnings_.clear();
  EXPECT_NO_THROW(open("close completed")->close(RunOutcome::kCompleted));
  expect_one_warning("close completed");
}

TEST_F(Guarded, May_fail_to_tell_its_state) {
  const auto run = open("state");
  run->write({.name = "loss"}, 1.0);
  EXPECT_EQ(run->state().dump(), R"({"writes":0})");
  run->flush();
  EXPECT_EQ(run->state().dump(), R"({"writes":0})");
  expect_one_warning("state");
}

TEST_F(Guarded, May_throw_what_is_no_exception_of_the_library) {
  const auto run = open("write number");
  EXPECT_NO_THROW(run->write({.name = "number"}, 1.0));
  expect_one_warning("an exception that is no std::exception");
}

TEST_F(Guarded, On_a_full_disk_warns_once_and_names_the_file) {
  const JsonlTrackerConfig config{.path = "/dev/full"};
  const auto run = build_tracker(config)->open(
      {.name = "a", .log = Logger({.sink = [this](std::string_view line) { warnings_.emplace_back(line); }})});
  for (std::int64_t step = 0; step < 3; ++step) {
    run->write({.name = "loss", .step = step}, 1.0);
    run->flush();
  }
  run->close(RunOutcome::kCompleted);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("'jsonl'"), HasSubstr("/dev/full"))));
}

struct NullOpening final : Tracker {
  [[nodiscard]] std::unique_ptr<TrackerRun> open(const RunInfo&) const override { return nullptr; }
};

TEST_F(Guarded, Names_a_tracker_or_a_run_that_is_null) {
  const TrackerFactories own = {{"null", [](const nlohmann::json&) { return nullptr; }},
                                {"opening", [](const nlohmann::json&) { return std::make_unique<NullOpening>(); }}};
  EXPECT_THAT([&] { (void)build_tracker(CustomTrackerConfig{.name = "null"}, own); },
              ::testing::ThrowsMessage<StateError>(HasSubstr("'null' in TrainerParts::trackers, got null")));
  const auto tracker = build_tracker(CustomTrackerConfig{.name = "opening"}, own);
  EXPECT_THAT([&] { (void)tracker->open({.name = "a"}); },
              ::testing::ThrowsMessage<StateError>(HasSubstr("a run of the tracker 'custom', got null")));
}

TEST_F(Guarded, Still_fails_to_open_a_wrong_path) {
  EXPECT_THROW((void)build_tracker(JsonlTrackerConfig{.path = "/dev/null/a"})->open({.name = "a"}), IoError);
}

}  // namespace
}  // namespace d9d::tracker_test
