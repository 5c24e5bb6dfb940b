// The official SDKs in .venv-trackers (`make trackers`), whose own readers find what was written.
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/tracker/helper/helper_tracker.h"
#include "d9d/tracker/run_info.h"

#include "tests/support/io_faults.h"

namespace d9d::sdk_test {
namespace {

using Json = nlohmann::json;

const std::string kPython = D9D_SOURCE_DIR "/.venv-trackers/bin/python";
const TrackerContext kTrain = {{"stage", "train"}};

std::string picture_of(int step) {
  return cat(R"(<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0h)", step, R"("/></svg>)");
}

class Sdk : public ::testing::Test {
 protected:
  void SetUp() override {
    // 1.1 GB that CI does not install; each start of an SDK takes seconds.
    if (std::getenv("D9D_TEST_SDKS") == nullptr) GTEST_SKIP() << "D9D_TEST_SDKS is not set (ctest -L full)";
    ASSERT_TRUE(std::filesystem::exists(kPython)) << "run `make trackers`";
  }

  [[nodiscard]] std::filesystem::path place(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] Json read(const std::string& provider, const std::string& where) const {
    const auto output = folder_ / "read.json";
    const std::string command = "cd '" + folder_.string() + "' && '" + kPython +
                                "' '" D9D_SOURCE_DIR "/tests/tracker/helper/read_runs.py' " + provider + " '" + where +
                                "' >'" + output.string() + "'";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return Json::parse(std::ifstream(output));
  }
  [[nodiscard]] static RunInfo info(const nlohmann::ordered_json& resume_state = nullptr) {
    return {.name = "pretrain",
            .description = "A test.",
            .hparams = {{"run", {{"seed", 1}, {"note", nullptr}}}, {"params", {{"width", 3}}}},
            .resume_state = resume_state};
  }
  // Writes steps 0 to 2 as a run that an exception ends, then steps 3 and 4 as one that resumes it and completes.
  static void write_two_runs(const HelperTracker::Config& config) {
    nlohmann::ordered_json state;
    {
      const auto run = HelperTracker(config).open(info());
      write_steps(*run, 0, 2);
      state = run->state();
    }
    const auto run = HelperTracker(config).open(info(state));
    write_steps(*run, 3, 4);
    run->close(RunOutcome::kCompleted);
  }
  static void write_steps(TrackerRun& run, int first, int last) {
    for (int step = first; step <= last; ++step) {
      run.write({.name = "loss", .step = step, .context = kTrain}, 1.0 / (step + 1));
      run.write({.name = "experts", .step = step, .context = kTrain}, CountHistogram{{3, 0, 5}});
      run.write({.name = "sample", .step = step}, TrackerText{"hello"});
      run.write({.name = "plot", .step = step, .context = kTrain}, TrackerPicture{picture_of(step)});
    }
  }

  const std::filesystem::path folder_ = test::fresh_directory("d");
};

const Json kLosses = {{0, 1.0}, {1, 0.5}, {2, 1.0 / 3}, {3, 0.25}, {4, 0.2}};

TEST_F(Sdk, Of_aim_reads_one_run_of_a_job_that_resumed) {
  write_two_runs(AimTrackerConfig{.repo = place("aim"), .spool_dir = place("spool")});
  const Json runs = read("aim", place("aim"));
  ASSERT_EQ(runs.size(), 1U) << runs;
  const Json& run = *runs.begin();
  EXPECT_EQ(run["name"], "pretrain");
  EXPECT_EQ(run["description"], "A test.");
  EXPECT_EQ(run["status"], "completed");
  EXPECT_EQ(run["hparams"], Json(info().hparams));
  EXPECT_EQ(run["series"]["train/loss"], kLosses);
  EXPECT_EQ(run["series"]["train/experts"][4], Json::parse("[4, [[3, 0, 5], [0, 1, 2, 3]]]"));
  EXPECT_EQ(run["series"]["sample"][4], Json({4, "hello"}));
}

TEST_F(Sdk, Of_wandb_reads_a_folder_for_each_process_and_one_run_id) {
  std::filesystem::create_directories(place("wandb"));
  write_two_runs(WandbTrackerConfig{.project = "p",
                                    .tags = {"a", "b"},
                                    .mode = WandbMode::kOffline,
                                    .dir = place("wandb"),
                                    .spool_dir = place("spool")});
  const Json runs = read("wandb", place("wandb"));
  ASSERT_EQ(runs.size(), 2U) << runs;
  EXPECT_EQ(runs[0]["id"], runs[1]["id"]);
  EXPECT_EQ(runs[0]["status"], "failed");
  EXPECT_EQ(runs[1]["status"], "finished");
  EXPECT_EQ(runs[1]["name"], "pretrain");
  EXPECT_EQ(runs[1]["description"], "A test.");
  EXPECT_EQ(runs[1]["tags"], Json({"a", "b"}));
  EXPECT_EQ(runs[1]["hparams"], Json::parse(R"({"run/seed": 1, "run/note": null, "params/width": 3})"));
  Json losses = runs[0]["series"]["train/loss"];
  for (const Json& loss : runs[1]["series"]["train/loss"]) losses.push_back(loss);
  EXPECT_EQ(losses, kLosses);
  EXPECT_EQ(runs[1]["series"]["train/experts.values"][1], Json({4, {3, 0, 5}}));
  EXPECT_EQ(runs[1]["pictures"], Json({picture_of(3), picture_of(4)}));
}

TEST_F(Sdk, Of_mlflow_reads_one_run_of_a_job_that_resumed) {
  const std::string uri = "sqlite:///" + place("runs.db").string();
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);  // where MLflow puts texts
  write_two_runs(MlflowTrackerConfig{.experiment = "x", .tracking_uri = uri, .spool_dir = place("spool")});
  std::filesystem::current_path(before);
  const Json runs = read("mlflow", uri);
  ASSERT_EQ(runs.size(), 1U) << runs;
  const Json& run = *runs.begin();
  EXPECT_EQ(run["name"], "pretrain");
  EXPECT_EQ(run["description"], "A test.");
  EXPECT_EQ(run["status"], "FINISHED");
  EXPECT_EQ(run["hparams"], Json::parse(R"({"run/seed": "1", "run/note": "null", "params/width": "3"})"));
  EXPECT_EQ(run["series"], Json({{"train/loss", kLosses}}));
  EXPECT_EQ(run["pictures"].size(), 5U);
  EXPECT_EQ(run["pictures"]["train/plot/4.svg"], picture_of(4));
}

TEST_F(Sdk, Of_mlflow_reads_a_run_that_an_exception_ended_as_failed) {
  const std::string uri = "sqlite:///" + place("runs.db").string();
  { const auto run = HelperTracker(MlflowTrackerConfig{.experiment = "x", .tracking_uri = uri}).open(info()); }
  EXPECT_EQ((*read("mlflow", uri).begin())["status"], "FAILED");
}

TEST_F(Sdk, Of_mlflow_takes_hyper_parameters_of_any_name) {
  const std::string uri = "sqlite:///" + place("runs.db").string();
  const std::string longest(300, 'n');
  RunInfo own = info();
  own.hparams = {{"a[0]", 1}, {"a{0}", 2}, {"x", {{"", 3}, {"..", 4}}}, {longest, 5}, {longest + "m", 6}};
  const auto run =
      HelperTracker(MlflowTrackerConfig{.experiment = "x", .tracking_uri = uri, .spool_dir = place("spool")}).open(own);
  run->close(RunOutcome::kStopped);
  const Json read_run = *read("mlflow", uri).begin();
  EXPECT_EQ(read_run["status"], "KILLED");
  EXPECT_EQ(read_run["hparams"].size(), 6U) << read_run["hparams"];
  EXPECT_EQ(read_run["hparams"]["a_0_"], "1");
  EXPECT_EQ(read_run["hparams"]["a_0__2"], "2");
  EXPECT_EQ(read_run["hparams"][longest.substr(0, 250)], "5");
}

TEST_F(Sdk, Of_wandb_replays_a_run_beside_that_of_the_job) {
  std::filesystem::create_directories(place("wandb"));
  const WandbTrackerConfig config{
      .project = "p", .mode = WandbMode::kOffline, .dir = place("wandb"), .spool_dir = place("spool")};
  const auto first = HelperTracker(config).open(info());
  first->close(RunOutcome::kStopped);
  const std::string id = first->state()["run_id"];
  std::filesystem::create_directories(place("spool"));
  std::ofstream(place("spool") / ("wandb-" + id + ".jsonl"))
      << Json{{"provider", "wandb"},
              {"config", nlohmann::json::parse(write_record(config).dump())},
              {"open",
               {{"name", "pretrain"},
                {"description", ""},
                {"hparams", Json::object()},
                {"resume_state", {{"run_id", id}}}}}}
             .dump()
      << "\n[5, \"late\", {}, 0.5]\n";
  const auto second = HelperTracker(config).open(info());
  second->write({.name = "own", .step = 0}, 1.0);
  second->close(RunOutcome::kCompleted);
  std::map<std::string, Json> series;
  for (const Json& run : read("wandb", place("wandb"))) series[run["id"]].update(run["series"]);
  EXPECT_EQ(series[id], Json({{"late", {{5, 0.5}}}}));
  EXPECT_EQ(series[second->state()["run_id"]], Json({{"own", {{0, 1.0}}}}));
}

}  // namespace
}  // namespace d9d::sdk_test
