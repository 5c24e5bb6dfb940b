// The helper process with stubs of the SDKs (tests/tracker/helper/stub), whose runs are files.
#include "d9d/tracker/helper/helper_tracker.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/tracker/run_info.h"

#include "tests/support/io_faults.h"
#include "tests/support/program.h"

namespace d9d::helper_tracker_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

using Json = nlohmann::ordered_json;

const TrackerContext kTrain = {{"stage", "train"}};
// Of processes that are killed or stopped; those of a machine with other work answer far sooner.
constexpr std::chrono::milliseconds kNoAnswer{2000};

// Warnings, which come from another thread.
class Warnings {
 public:
  [[nodiscard]] Logger log() {
    return Logger({.min_level = LogLevel::kWarning, .sink = [this](std::string_view line) {
                     const std::scoped_lock lock(mutex_);
                     lines_.emplace_back(line);
                     added_.notify_all();
                   }});
  }
  void wait_for_one() {
    std::unique_lock lock(mutex_);
    added_.wait(lock, [&] { return !lines_.empty(); });
  }
  [[nodiscard]] std::vector<std::string> lines() const { return lines_; }

 private:
  std::mutex mutex_;
  std::condition_variable added_;
  std::vector<std::string> lines_;
};

std::vector<Json> lines_of(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

class Helper : public ::testing::Test {
 protected:
  Helper() { ::setenv("PYTHONPATH", D9D_SOURCE_DIR "/tests/tracker/helper/stub", /*overwrite=*/1); }
  ~Helper() override { ::unsetenv("PYTHONPATH"); }

  [[nodiscard]] AimTrackerConfig aim() const {
    return {.repo = folder_ / "runs", .python = D9D_TEST_PYTHON, .spool_dir = folder_ / "spool"};
  }
  [[nodiscard]] RunInfo info(const Json& resume_state = nullptr) {
    return {.name = "pretrain",
            .description = "A test.",
            .hparams = {{"run", {{"seed", 1}}}, {"params", {{"width", 3}}}},
            .resume_state = resume_state,
            .log = warnings_.log()};
  }
  // Calls of the run that `state` names.
  [[nodiscard]] std::vector<Json> calls(const Json& state) const {
    const std::string id = state.contains("run_id") ? state["run_id"] : state["restart_hash"];
    return lines_of(folder_ / "runs" / (id + ".jsonl"));
  }
  [[nodiscard]] std::vector<Json> calls(const Json& state, const std::string& verb) const {
    std::vector<Json> all = calls(state);
    std::erase_if(all, [&](const Json& call) { return call[0] != verb; });
    return all;
  }
  // Steps of the values of "loss" that the run has, and how often.
  [[nodiscard]] std::multiset<int> steps_of(const Json& state) const {
    std::multiset<int> steps;
    for (const Json& call : calls(state, "track")) {
      if (call[2] == "loss") steps.insert(call[1].get<int>());
    }
    return steps;
  }
  [[nodiscard]] std::vector<std::filesystem::path> spools() const {
    std::vector<std::filesystem::path> files;
    if (!std::filesystem::exists(folder_ / "spool")) return files;
    for (const auto& file : std::filesystem::directory_iterator(folder_ / "spool")) files.push_back(file.path());
    return files;
  }

  const std::filesystem::path folder_ = test::fresh_directory("d");
  Warnings warnings_;
};

void write_steps(TrackerRun& run, int first, int last) {
  for (int step = first; step <= last; ++step) run.write({.name = "loss", .step = step, .context = kTrain}, 0.5 * step);
}

std::multiset<int> range(int first, int last) {
  std::multiset<int> steps;
  for (int step = first; step <= last; ++step) steps.insert(step);
  return steps;
}

TEST_F(Helper, Hands_every_kind_of_value_to_aim) {
  AimTrackerConfig config = aim();
  config.log_system_params = config.capture_terminal_logs = false;
  config.system_tracking_interval = 5;
  const auto run = HelperTracker(config).open(info());
  run->write({.name = "loss", .step = -1, .context = {{"stage", "eval"}}}, 1.0 / 3);
  run->write({.name = "loss", .step = 7, .context = kTrain}, std::numeric_limits<double>::quiet_NaN());
  run->write({.name = "experts", .step = 7}, CountHistogram{{3, 0, 5}});
  run->write({.name = "plot", .step = 7}, TrackerPicture{"<svg/>"});  // Aim has none
  run->write({.name = "sample", .step = 7}, TrackerText{"line 1\nline \"2\" \xc3\xa9"});
  run->close(RunOutcome::kCompleted);
  const Json state = run->state();
  EXPECT_EQ(state["last_step"], 7);
  const auto all = calls(state);
  EXPECT_THAT(all,
              ElementsAre(Json({"open", false, false, 5}), Json({"name", "pretrain"}), Json({"description", "A test."}),
                          Json({"set", "hparams", {{"run", {{"seed", 1}}}, {"params", {{"width", 3}}}}}),
                          Json({"set", "status", "running"}),
                          Json::parse(R"(["track", -1, "loss", {"stage": "eval"}, 0.3333333333333333])"), ::testing::_,
                          Json::parse(R"(["track", 7, "experts", {}, {"hist": [3, 0, 5], "bin_range": [0, 3]}])"),
                          Json::parse(R"(["track", 7, "sample", {}, {"text": "line 1\nline \"2\" é"}])"),
                          Json({"set", "status", "completed"}), Json::array({"successful"}), Json::array({"close"})));
  EXPECT_THAT(warnings_.lines(), IsEmpty());
}

TEST_F(Helper, Resumes_the_run_and_ends_it_as_failed_when_an_exception_does) {
  Json state;
  {
    const auto run = HelperTracker(aim()).open(info());
    write_steps(*run, 0, 1);
    state = run->state();
  }
  EXPECT_THAT(calls(state, "set"), Contains(Json({"set", "status", "failed"})));
  const HelperTracker tracker(aim());
  const auto run = tracker.open(info(state));
  write_steps(*run, 2, 2);
  run->close(RunOutcome::kCompleted);
  EXPECT_EQ(run->state()["restart_hash"], state["restart_hash"]);
  EXPECT_EQ(steps_of(state), range(0, 2));
  tracker.open(info(run->state()))->close(RunOutcome::kCompleted);  // starts a process of its own
  EXPECT_EQ(calls(state, "open").size(), 3U);
}

// In time that grows with the square of the length it would be given up.
TEST_F(Helper, Takes_a_long_text_before_it_is_taken_for_frozen) {
  const auto run = HelperTracker(aim()).open(info());
  run->write({.name = "sample", .step = 0}, TrackerText{std::string(std::size_t{96} << 20, 'x')});
  run->close(RunOutcome::kCompleted);
  EXPECT_THAT(warnings_.lines(), IsEmpty());
  EXPECT_THAT(spools(), IsEmpty());
}

TEST_F(Helper, Leaves_out_what_the_sdk_finds_wrong_and_says_so_once) {
  const auto run = HelperTracker(aim()).open(info());
  write_steps(*run, 0, 3);
  for (int step = 4; step < 8; ++step) run->write({.name = "wrong", .step = step}, 1.0);
  write_steps(*run, 8, 9);
  run->close(RunOutcome::kCompleted);
  EXPECT_EQ(steps_of(run->state()).size(), 6U);
  EXPECT_THAT(warnings_.lines(), ElementsAre(HasSubstr("'wrong' is no name")));
  EXPECT_THAT(spools(), IsEmpty());
}

// ---- A process that fails: one warning; every value is in the run or in the spool, which the next run replays. ----

class FailingHelper : public Helper {
 protected:
  // Writes 100 steps and, among them, a value that does harm.
  Json write_with(const std::string& harm, const HelperLimits& limits) {
    const auto run = HelperTracker(aim(), limits).open(info());
    write_steps(*run, 0, 49);
    run->write({.name = harm, .step = 50}, 1.0);
    write_steps(*run, 50, 99);
    run->close(RunOutcome::kCompleted);
    return run->state();
  }
  void expect_one_warning(const std::string& reason) {
    EXPECT_THAT(warnings_.lines(), ElementsAre(AllOf(HasSubstr("'aim'"), HasSubstr(reason), HasSubstr("spool/aim-"))));
  }
};

TEST_F(FailingHelper, Killed_loses_no_value_of_the_run_that_resumes) {
  const Json state = write_with("die", {});
  expect_one_warning("killed by signal 9");
  EXPECT_EQ(steps_of(state), range(0, 49));
  EXPECT_THAT(spools(), SizeIs(1));

  const auto run = HelperTracker(aim()).open(info(state));
  write_steps(*run, 100, 101);
  run->close(RunOutcome::kCompleted);
  const auto steps = steps_of(state);
  EXPECT_EQ(std::set<int>(steps.begin(), steps.end()).size(), 102U);
  EXPECT_THAT(spools(), IsEmpty());
}

TEST_F(FailingHelper, Killed_has_its_values_added_to_its_own_run_by_a_fresh_one) {
  const Json state = write_with("die", {});
  const auto run = HelperTracker(aim()).open(info());
  run->close(RunOutcome::kCompleted);
  EXPECT_NE(run->state()["restart_hash"], state["restart_hash"]);
  EXPECT_THAT(steps_of(run->state()), IsEmpty());
  const auto steps = steps_of(state);
  EXPECT_EQ(std::set<int>(steps.begin(), steps.end()).size(), 100U);
  EXPECT_EQ(calls(state, "set").back(), Json({"set", "status", "completed"}));  // as it was closed
}

TEST_F(FailingHelper, Killed_leaves_out_the_steps_that_a_resumed_run_repeats) {
  Json state = write_with("die", {});
  state["last_step"] = 69;
  const auto run = HelperTracker(aim()).open(info(state));
  write_steps(*run, 70, 70);
  run->close(RunOutcome::kCompleted);
  const auto steps = steps_of(state);
  EXPECT_EQ(std::set<int>(steps.begin(), steps.end()).size(), 71U);
}

TEST_F(FailingHelper, Killed_is_started_again_after_a_flush_and_goes_on_with_the_run) {
  const auto run = HelperTracker(aim()).open(info());
  write_steps(*run, 0, 49);
  run->write({.name = "die", .step = 50}, 1.0);
  write_steps(*run, 50, 99);
  warnings_.wait_for_one();
  run->flush();
  write_steps(*run, 100, 149);
  run->close(RunOutcome::kCompleted);
  expect_one_warning("killed by signal 9");
  const auto steps = steps_of(run->state());
  EXPECT_EQ(std::set<int>(steps.begin(), steps.end()).size(), 150U);
  EXPECT_THAT(calls(run->state(), "open"), SizeIs(2));
  EXPECT_EQ(calls(run->state()).back(), Json::array({"close"}));
  EXPECT_THAT(spools(), IsEmpty());
}

TEST_F(FailingHelper, Killed_keeps_texts_with_characters_that_end_lines_elsewhere) {
  const std::string text = "a\n\u2028\u0085\x0b b";
  const auto run = HelperTracker(aim()).open(info());
  run->write({.name = "die"}, 1.0);
  run->write({.name = "sample", .step = 1}, TrackerText{text});
  write_steps(*run, 2, 9);
  run->close(RunOutcome::kCompleted);
  HelperTracker(aim()).open(info())->close(RunOutcome::kCompleted);
  EXPECT_EQ(steps_of(run->state()), range(2, 9));
  EXPECT_THAT(calls(run->state()), Contains(Json::array({"track", 1, "sample", Json::object(), {{"text", text}}})));
  EXPECT_EQ(calls(run->state(), "set").back(), Json({"set", "status", "completed"}));
}

TEST_F(FailingHelper, Leaves_spools_that_it_cannot_replay_and_removes_empty_ones) {
  const auto spool = folder_ / "spool";
  std::filesystem::create_directories(spool / "aim-locked.jsonl.lock");  // no file: it cannot be locked
  const std::ofstream empty(spool / "aim-empty.jsonl"), locked(spool / "aim-locked.jsonl");
  std::ofstream(spool / "aim-other.jsonl") << R"({"provider": "other"})" << '\n';
  ::testing::internal::CaptureStderr();
  HelperTracker(aim()).open(info())->close(RunOutcome::kCompleted);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, AllOf(HasSubstr("aim-locked.jsonl is kept"), HasSubstr("aim-other.jsonl is kept")));
  EXPECT_THAT(spools(), ::testing::UnorderedElementsAre(spool / "aim-locked.jsonl", spool / "aim-locked.jsonl.lock",
                                                        spool / "aim-other.jsonl"));
}

// A training process that is killed before it has read an answer to its first value.
const test::TestProgram kKilled("killed_beside_its_helper", [] {
  const std::filesystem::path folder = std::getenv("FOLDER");
  const AimTrackerConfig config{.repo = folder / "runs", .spool_dir = folder / "spool"};
  const HelperProgram program{.provider = "aim", .python = D9D_TEST_PYTHON, .config = write_record(config)};
  const auto process = program.start();
  (void)program.open(*process,
                     {{"name", "a"}, {"description", ""}, {"hparams", Json::object()}, {"resume_state", Json()}});
  process->send(R"([0, "wrong", {}, 1])");
  process->send(R"([0, "loss", {}, 1])");
  process->send(R"([1, "wait", {}, 1])");
  process->send(R"([2, "loss", {}, 1])");
  (void)process->receive(std::chrono::milliseconds(0));
  (void)::open((folder / "runs" / "gate").c_str(), O_WRONLY);  // waits until the process has answered, and is there
  return ::raise(SIGKILL);
});

TEST_F(FailingHelper, Writes_what_a_killed_job_has_sent_and_closes_the_run_as_failed) {
  const auto gate = folder_ / "runs" / "gate";
  std::filesystem::create_directories(gate.parent_path());
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  const test::Result result = test::Program("killed_beside_its_helper", {{"FOLDER", folder_}}).wait();  // for both
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.errors;
  EXPECT_EQ(result.errors, "");
  Json state;
  for (const auto& file : std::filesystem::directory_iterator(folder_ / "runs")) {
    if (file.path().extension() == ".jsonl") state["restart_hash"] = file.path().stem();
  }
  EXPECT_EQ(steps_of(state), (std::multiset<int>{0, 2}));
  EXPECT_EQ(calls(state, "set").back(), Json({"set", "status", "failed"}));
  EXPECT_EQ(calls(state).back(), Json::array({"close"}));
}

TEST_F(FailingHelper, Frozen_is_given_up_at_the_end) {
  const Json state = write_with("freeze", {.without_answer = kNoAnswer});
  expect_one_warning("does not answer");
  const auto run = HelperTracker(aim()).open(info(state));
  run->close(RunOutcome::kCompleted);
  const auto steps = steps_of(state);
  EXPECT_EQ(std::set<int>(steps.begin(), steps.end()).size(), 100U);
}

TEST_F(FailingHelper, Slow_gets_no_more_than_it_takes_and_keeps_that) {
  const auto gate = folder_ / "runs" / "gate";
  std::filesystem::create_directories(gate.parent_path());
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  const HelperTracker tracker(aim(), {.max_queued = 100});
  const auto run = tracker.open(info());
  run->write({.name = "wait", .step = 0}, 1.0);
  constexpr int kLast = 19'999;  // more than what is sent in advance
  write_steps(*run, 0, kLast);
  warnings_.wait_for_one();
  ::close(::open(gate.c_str(), O_WRONLY));  // the SDK goes on
  run->close(RunOutcome::kCompleted);
  expect_one_warning("more slowly");
  const Json state = run->state();
  const auto taken = steps_of(state);
  EXPECT_GT(taken.size(), 0U);
  EXPECT_LT(taken.size(), 20'000U);
  EXPECT_EQ(calls(state).back(), Json::array({"close"}));

  tracker.open(info(state))->close(RunOutcome::kCompleted);
  EXPECT_EQ(steps_of(state), range(0, kLast));  // each once
}

TEST_F(FailingHelper, Slow_goes_on_after_a_flush_once_it_has_caught_up) {
  const auto gate = folder_ / "runs" / "gate";
  std::filesystem::create_directories(gate.parent_path());
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  const auto run = HelperTracker(aim(), {.max_queued = 100}).open(info());
  run->write({.name = "wait", .step = 0}, 1.0);
  write_steps(*run, 0, 9'999);
  warnings_.wait_for_one();
  ::close(::open(gate.c_str(), O_WRONLY));
  run->flush();
  run->close(RunOutcome::kCompleted);
  expect_one_warning("more slowly");
  EXPECT_EQ(steps_of(run->state()), range(0, 9'999));
  EXPECT_EQ(calls(run->state()).back(), Json::array({"close"}));
  EXPECT_THAT(spools(), IsEmpty());
}

TEST_F(FailingHelper, On_a_full_disk_costs_values_and_two_warnings) {
  const auto run = HelperTracker(aim()).open(info());
  const test::FileSizeLimit limit(0);
  run->write({.name = "die"}, 1.0);
  write_steps(*run, 0, 9);
  run->close(RunOutcome::kCompleted);
  EXPECT_THAT(warnings_.lines(), ElementsAre(HasSubstr("killed"), HasSubstr("are lost")));
}

TEST_F(FailingHelper, Without_room_says_so_when_the_first_value_is_lost) {
  const HelperLimits limits{.max_kept = 10, .tick = std::chrono::hours(1)};
  const auto run = HelperTracker(aim(), limits).open(info());
  write_steps(*run, 0, 10);
  EXPECT_THAT(warnings_.lines(), ElementsAre(AllOf(HasSubstr("'aim'"), HasSubstr("lost from step 10 on"))));
  run->close(RunOutcome::kCompleted);
  EXPECT_EQ(steps_of(run->state()), range(0, 9));
}

TEST_F(FailingHelper, That_answers_more_than_it_got_is_given_up) {
  HelperFeed feed({.process = std::make_unique<LineProcess>(
                       std::vector<std::string>{"/bin/sh", "-c", R"(read line; echo '{"done": 3}'; cat >/dev/null)"}),
                   .restart = []() -> std::unique_ptr<LineProcess> { throw IoError("none"); },
                   .spool = {folder_ / "spool" / "aim-0.jsonl", "{}"},
                   .log = warnings_.log(),
                   .name = "aim"});
  feed.add({.name = "loss"}, 1.0);
  feed.close(RunOutcome::kCompleted);
  expect_one_warning("answers more values than it has got");
  EXPECT_THAT(lines_of(folder_ / "spool" / "aim-0.jsonl"), SizeIs(3));  // header, value, close
}

TEST_F(FailingHelper, Leaves_spools_that_the_next_job_replays_after_it_has_opened_its_own_run) {
  const Json state = write_with("die", {});
  const auto gate = folder_ / "runs" / "gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  std::ofstream(spools()[0], std::ios::app) << R"([100, "wait", {}, 1.0])" << '\n';  // the SDK hangs in the replay
  const auto run = HelperTracker(aim(), {.for_opening = kNoAnswer * 10}).open(info());
  write_steps(*run, 0, 1);
  ::close(::open(gate.c_str(), O_WRONLY));
  run->close(RunOutcome::kCompleted);
  EXPECT_EQ(steps_of(run->state()), range(0, 1));
  const auto steps = steps_of(state);
  EXPECT_EQ(std::set<int>(steps.begin(), steps.end()).size(), 100U);
  EXPECT_THAT(warnings_.lines(), SizeIs(1));  // of the first job
}

// ---- What ends the job at its start. ----

TEST_F(Helper, Names_the_remedy_when_the_sdk_is_missing) {
  ::unsetenv("PYTHONPATH");
  EXPECT_THAT(test::message_of<ConfigError>([&] { HelperTracker tracker(aim()); }),
              AllOf(HasSubstr("no module named 'aim'"), HasSubstr(D9D_TEST_PYTHON), HasSubstr("make trackers"),
                    HasSubstr("'python'")));
}

TEST_F(Helper, Names_an_interpreter_that_is_missing) {
  AimTrackerConfig config = aim();
  config.python = folder_ / "python";
  EXPECT_THAT(test::message_of<ConfigError>([&] { HelperTracker tracker(config); }),
              AllOf(HasSubstr((folder_ / "python").string()), HasSubstr("No such file"), Not(HasSubstr(".."))));
}

TEST_F(Helper, Finds_an_interpreter_by_its_name) {
  AimTrackerConfig config = aim();
  config.python = "python3";
  HelperTracker(config).open(info())->close(RunOutcome::kCompleted);
}

TEST_F(Helper, Says_why_the_sdk_does_not_open_a_run) {
  AimTrackerConfig config = aim();
  config.repo = "/dev/null/runs";
  const HelperTracker tracker(config);
  EXPECT_THAT(test::message_of<IoError>([&] { (void)tracker.open(info()); }), HasSubstr("Not a directory"));
}

TEST_F(Helper, Refuses_a_folder_that_wandb_cannot_write) {
  const WandbTrackerConfig config{.project = "p",
                                  .mode = WandbMode::kOffline,
                                  .dir = "/dev/null/runs",
                                  .python = D9D_TEST_PYTHON,
                                  .spool_dir = folder_ / "spool"};
  const HelperTracker tracker(config);
  EXPECT_THAT(test::message_of<IoError>([&] { (void)tracker.open(info()); }), HasSubstr("/dev/null"));
}

// ---- The other SDKs. ----

TEST_F(Helper, Groups_values_by_step_for_wandb) {
  const WandbTrackerConfig config{.project = "p",
                                  .entity = "e",
                                  .group = "g",
                                  .tags = {"a", "b"},
                                  .mode = WandbMode::kOffline,
                                  .dir = folder_ / "runs",
                                  .capture_terminal_logs = true,
                                  .python = D9D_TEST_PYTHON,
                                  .spool_dir = folder_ / "spool"};
  Json state;
  {
    const auto run = HelperTracker(config).open(info());
    run->write({.name = "loss", .step = 0, .context = kTrain}, 2.5);
    run->write({.name = "lr", .step = 0, .context = kTrain}, 0.1);
    std::vector<double> counts(1024, 1);
    run->write({.name = "experts", .step = 1}, CountHistogram{counts});
    run->write({.name = "plot", .step = 1, .context = kTrain}, TrackerPicture{"<svg/>"});
    state = run->state();
  }
  const auto all = calls(state);
  EXPECT_EQ(all[0], Json::parse(R"(["init", "p", "e", "g", ["a", "b"], "offline", "pretrain", "A test.",
                                    {"run/seed": 1, "params/width": 3}, null, "wrap"])"));
  EXPECT_EQ(all[1], Json::parse(R"(["log", 0, {"train/loss": 2.5, "train/lr": 0.1}])"));
  EXPECT_THAT(all[2][2]["experts"][0], SizeIs(512));  // as many bins as W&B takes
  EXPECT_EQ(all[2][2]["experts"][1].back(), 1024);
  EXPECT_EQ(all[2][2]["train/plot"], Json({{"html", "<svg/>"}, {"inject", false}}));
  EXPECT_EQ(all[3], Json({"finish", 1}));
  HelperTracker(config).open(info(state))->close(RunOutcome::kCompleted);
  const auto resumed = calls(state);
  EXPECT_EQ(resumed[4][9], "must");
  EXPECT_EQ(resumed[5], Json({"finish", 0}));
}

TEST_F(Helper, Writes_scalars_texts_and_parameters_to_mlflow) {
  const MlflowTrackerConfig config{
      .experiment = "x", .tracking_uri = folder_ / "runs", .python = D9D_TEST_PYTHON, .spool_dir = folder_ / "spool"};
  Json state;
  {
    const auto run = HelperTracker(config).open(info());
    run->write({.name = "loss", .step = 3, .context = kTrain}, 2.5);
    run->write({.name = "wrong", .step = 3}, 1.0);
    run->write({.name = "experts", .step = 3}, CountHistogram{{1}});
    run->write({.name = "../sample", .step = 3}, TrackerText{"hello"});  // for MLflow no path
    run->write({.name = "sample", .step = 3}, TrackerText{"hello"});
    run->write({.name = "plot", .step = 3, .context = kTrain}, TrackerPicture{"<svg/>"});
    state = run->state();
  }
  EXPECT_EQ(calls(state, "create")[0],
            Json::parse(R"(["create", "of x", "pretrain", {"mlflow.note.content": "A test."}])"));
  EXPECT_THAT(calls(state, "log"),
              ElementsAre(Json::parse(R"(["log", [], [["run/seed", "1"], ["params/width", "3"]]])"),
                          Json::parse(R"(["log", [["train/loss", 2.5, 3]], []])")));
  EXPECT_THAT(calls(state, "text"),
              ElementsAre(Json({"text", "hello", "sample/3.txt"}), Json({"text", "<svg/>", "train/plot/3.svg"})));
  EXPECT_THAT(warnings_.lines(), ElementsAre(HasSubstr("../sample/3.txt is no path of an artifact")));
  EXPECT_EQ(calls(state).back(), Json({"terminated", "FAILED"}));
  HelperTracker(config).open(info(state))->close(RunOutcome::kCompleted);
  EXPECT_THAT(calls(state, "update"), ElementsAre(Json({"update", "RUNNING"})));
  EXPECT_EQ(calls(state).back(), Json({"terminated", "FINISHED"}));
}

TEST_F(Helper, Gives_mlflow_names_of_parameters_that_it_takes) {
  const MlflowTrackerConfig config{
      .experiment = "x", .tracking_uri = folder_ / "runs", .python = D9D_TEST_PYTHON, .spool_dir = folder_ / "spool"};
  RunInfo own = info();
  own.hparams = {{"layers[0]", 1}, {"layers(0)", 2}, {std::string(300, 'n'), 3}, {"lr", 4}};
  const auto run = HelperTracker(config).open(own);
  run->close(RunOutcome::kCompleted);
  EXPECT_EQ(calls(run->state(), "log")[0][2],
            Json::array({Json::array({"layers_0_", "1"}), Json::array({"layers_0__2", "2"}),
                         Json::array({std::string(250, 'n'), "3"}), Json::array({"lr", "4"})}));
  EXPECT_THAT(warnings_.lines(), ElementsAre(AllOf(HasSubstr("of 3 hyper-parameters"), HasSubstr("'layers[0]'"))));
}

TEST_F(Helper, Tells_the_sdks_of_a_run_that_a_signal_stopped) {
  const auto calls_after = [&](const HelperTracker::Config& config) {
    const auto run = HelperTracker(config).open(info());
    run->close(RunOutcome::kStopped);
    return calls(run->state());
  };
  const auto runs = folder_ / "runs", spool = folder_ / "spool";
  EXPECT_THAT(calls_after(aim()), Contains(Json({"set", "status", "stopped"})));
  const auto wandb =
      calls_after(WandbTrackerConfig{.project = "p", .dir = runs, .python = D9D_TEST_PYTHON, .spool_dir = spool});
  EXPECT_EQ(wandb.back(), Json({"finish", 1}));
  EXPECT_THAT(wandb, Contains(Json::array({"preempting"})));
  const auto mlflow = calls_after(
      MlflowTrackerConfig{.experiment = "x", .tracking_uri = runs, .python = D9D_TEST_PYTHON, .spool_dir = spool});
  EXPECT_EQ(mlflow.back(), Json({"terminated", "KILLED"}));
}

}  // namespace
}  // namespace d9d::helper_tracker_test
