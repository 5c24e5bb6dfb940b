#include "d9d/tracker/tensorboard/tensorboard_tracker.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/io/append_file.h"
#include "d9d/tracker/run_info.h"
#include "d9d/tracker/tensorboard/run_markdown.h"

#include "tests/support/python.h"

namespace d9d::tensorboard_tracker_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Pair;

std::filesystem::path fresh_folder(const std::string& name) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "tensorboard_tracker" / name;
  std::filesystem::remove_all(folder);
  return folder;
}

// The values that TensorBoard's own reader finds.
nlohmann::json read_events(const std::filesystem::path& log_dir) {
  return nlohmann::json::parse(test::run_python("tests/tracker/tensorboard/read_events.py", {log_dir.string()}));
}

double number(const nlohmann::json& hexadecimal) {
  return std::strtod(hexadecimal.get<std::string>().c_str(), nullptr);
}

std::vector<std::pair<int, double>> scalars(const nlohmann::json& events, const std::string& tag) {
  std::vector<std::pair<int, double>> all;
  for (const auto& event : events.at("scalars").at(tag)) all.emplace_back(event[0], number(event[1]));
  return all;
}

void write_steps(TrackerRun& run, std::int64_t first, std::int64_t last, double loss) {
  for (std::int64_t step = first; step <= last; ++step) {
    run.write({.name = "loss", .step = step, .context = {{"stage", "train"}}}, loss);
  }
}

TEST(TensorboardTracker, Writes_what_tensorboard_reads) {
  const auto folder = fresh_folder("all");
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> losses = {
      2.3456789, -1e-30, 0.0, 1e300, infinity, -infinity, std::numeric_limits<double>::quiet_NaN()};
  {
    const auto run = TensorboardTracker(folder).open(
        {.name = "pretrain", .description = "A test.", .hparams = {{"run", {{"lr", 0.5}}}}});
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const auto step = static_cast<std::int64_t>(i) * 1000;
      run->write({.name = "loss", .step = step, .context = {{"stage", "train"}}}, losses[i]);
      run->write({.name = "tokens", .step = step}, CountHistogram{{3, 0, static_cast<double>(i)}});
      run->write({.name = "plot", .step = step}, TrackerPicture{"<svg/>"});  // left out
    }
    run->close(RunOutcome::kCompleted);
  }
  const auto events = read_events(folder);

  EXPECT_EQ(events.at("file_version"), 2);
  const auto read = scalars(events, "train/loss");
  ASSERT_EQ(read.size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_EQ(read[i].first, i * 1000);
    const auto expected = static_cast<double>(static_cast<float>(losses[i]));
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(read[i].second));
    else
      EXPECT_EQ(read[i].second, expected);
  }

  const auto& histograms = events.at("histograms").at("tokens");
  ASSERT_EQ(histograms.size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_EQ(histograms[i][0], i * 1000);
    std::vector<double> numbers;
    for (const auto& entry : histograms[i][1]) numbers.push_back(number(entry));
    const auto last = static_cast<double>(i);
    EXPECT_THAT(numbers, ElementsAre(0, 3, 3 + last, 2 * last, 4 * last,  // min, max, num, sum, sum of squares
                                     1, 2, 3,                             // upper edges
                                     3, 0, last));
  }

  EXPECT_EQ(events.at("texts").at("run"),
            nlohmann::json::parse(
                R"([[0, "# pretrain\n\nA test.\n\n| hyper-parameter | value |\n|---|---|\n| run/lr | 0.5 |\n"]])"));
  for (const double wall_time : events.at("wall_times")) EXPECT_NEAR(wall_time, std::time(nullptr), 60);
}

TEST(TensorboardTracker, Resumed_has_each_step_once_and_the_text_still) {
  const auto folder = fresh_folder("resumed");
  nlohmann::ordered_json state;
  {
    const auto run = TensorboardTracker(folder).open({.name = "a"});
    write_steps(*run, 0, 1, 1);
    run->flush();
    state = run->state();
    write_steps(*run, 2, 4, 1);  // repeated after the resume
  }
  write_steps(*TensorboardTracker(folder).open({.name = "a", .resume_state = state}), 2, 2, 2);
  const auto events = read_events(folder);
  EXPECT_THAT(scalars(events, "train/loss"), ElementsAre(Pair(0, 1), Pair(1, 1), Pair(2, 2)));
  EXPECT_EQ(events.at("texts").at("run").size(), 1U);
}

TEST(TensorboardTracker, Fresh_hides_the_values_of_an_earlier_run_in_its_folder) {
  const auto folder = fresh_folder("fresh");
  write_steps(*TensorboardTracker(folder).open({.name = "a"}), 0, 4, 1);
  write_steps(*TensorboardTracker(folder).open({.name = "b"}), 0, 0, 2);
  const auto events = read_events(folder);
  EXPECT_THAT(scalars(events, "train/loss"), ElementsAre(Pair(0, 2)));
  EXPECT_THAT(events.at("texts").at("run").back()[1].get<std::string>(), HasSubstr("# b"));
}

TEST(TensorboardTracker, Names_a_file_by_time_host_and_process_and_numbers_repetitions) {
  const auto folder = fresh_folder("names");
  const auto tracker = TensorboardTracker(folder);
  tracker.open({.name = "a"})->close(RunOutcome::kCompleted);
  tracker.open({.name = "a"})->close(RunOutcome::kCompleted);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  EXPECT_THAT(names, ::testing::SizeIs(2));
  EXPECT_THAT(names, ::testing::Each(MatchesRegex(R"(events\.out\.tfevents\.[0-9]+\..+\.[0-9]+\.[01])")));
}

TEST(TensorboardTracker, Has_its_folder_for_itself_while_a_run_is_open) {
  const auto folder = fresh_folder("locked");
  const auto tracker = TensorboardTracker(folder);
  const auto run = tracker.open({.name = "a"});
  EXPECT_THAT(
      [&] { (void)tracker.open({.name = "b"}); },
      ::testing::ThrowsMessage<IoError>(AllOf(HasSubstr(folder.string()), HasSubstr("in use by no other job"))));
  run->close(RunOutcome::kCompleted);
  EXPECT_NO_THROW((void)tracker.open({.name = "c"}));
}

TEST(TensorboardTracker, Names_the_folder_that_cannot_be_made) {
  const auto blocker = fresh_folder("blocked") / "file";
  AppendFile(blocker).write("x");
  try {
    (void)TensorboardTracker(blocker / "logs").open({.name = "a"});
    FAIL() << "no error";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr((blocker / "logs").string()));
  }
}

TEST(RunMarkdown, Flattens_hyperparameters_and_keeps_null) {
  EXPECT_EQ(run_markdown({.name = "a", .hparams = {{"model", {{"num_layers", 2}, {"bias", nullptr}}}, {"tag", "x"}}}),
            "# a\n\n| hyper-parameter | value |\n|---|---|\n"
            "| model/num_layers | 2 |\n| model/bias | null |\n| tag | x |\n");
}

TEST(RunMarkdown, Keeps_bars_and_line_ends_from_breaking_the_table) {
  EXPECT_THAT(run_markdown({.name = "a", .hparams = {{"k", "x|y\nz"}}}), HasSubstr("| k | x\\|y<br>z |\n"));
}

}  // namespace
}  // namespace d9d::tensorboard_tracker_test
