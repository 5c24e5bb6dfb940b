#include "d9d/tracker/jsonl_tracker.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/tracker/run_info.h"

#include "tests/support/io_faults.h"

namespace d9d::jsonl_tracker_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const TrackerContext kTrain = {{"stage", "train"}};

class Jsonl : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(path_.parent_path()); }

  [[nodiscard]] std::vector<std::string> lines(const std::string& suffix = "") const {
    std::vector<std::string> all;
    std::ifstream file(path_.string() + suffix);
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  }

  [[nodiscard]] std::unique_ptr<TrackerRun> open(const nlohmann::ordered_json& resume_state = nullptr) const {
    return JsonlTracker(path_).open({.name = "a", .resume_state = resume_state});
  }

  const std::filesystem::path path_ = std::filesystem::path(::testing::TempDir()) /
                                      ::testing::UnitTest::GetInstance()->current_test_info()->name() / "metrics.jsonl";
};

TEST_F(Jsonl, Puts_all_values_of_a_step_on_one_line) {
  const auto run = open();
  run->write({.name = "loss", .step = 0, .context = kTrain}, 2.5);
  run->write({.name = "lr", .step = 0, .context = kTrain}, 3e-4);
  run->write({.name = "num_tokens", .step = 0, .context = kTrain}, 4096.0);
  run->write({.name = "loss", .step = 1, .context = kTrain}, 2.25);
  run->close(RunOutcome::kCompleted);
  EXPECT_THAT(lines(),
              ElementsAre(R"({"step":0,"loss":2.5,"lr":0.0003,"num_tokens":4096})", R"({"step":1,"loss":2.25})"));
}

TEST_F(Jsonl, Writes_a_line_when_the_step_changes_and_when_flushed) {
  const auto run = open();
  run->write({.name = "loss", .step = 0, .context = kTrain}, 2.5);
  EXPECT_EQ(lines().size(), 0U);
  run->write({.name = "loss", .step = 1, .context = kTrain}, 2.25);
  EXPECT_EQ(lines().size(), 1U);
  run->flush();
  run->flush();
  EXPECT_EQ(lines().size(), 2U);
}

TEST_F(Jsonl, Writes_what_it_holds_when_destroyed) {
  open()->write({.name = "loss", .step = 0, .context = kTrain}, 2.5);
  EXPECT_EQ(lines().size(), 1U);
}

TEST_F(Jsonl, Folds_a_context_into_the_name_unless_it_is_that_of_the_run) {
  const auto run = open();
  run->write({.name = "loss", .step = 0, .context = kTrain}, 2.5);
  run->write({.name = "loss", .step = 0, .context = {{"stage", "eval"}}}, 2.75);
  run->write({.name = "loss", .step = 0, .context = {{"stage", "train"}, {"dataset", "c4"}}}, 2.25);
  run->flush();
  EXPECT_THAT(lines(), ElementsAre(R"({"step":0,"loss":2.5,"eval/loss":2.75,"c4/train/loss":2.25})"));
}

TEST_F(Jsonl, Reads_back_every_double_bit_for_bit) {
  const std::vector<double> values = {1.0 / 3, 0.1 + 0.2,          5e-324, 1.7976931348623157e308,
                                      -0.0,    9007199254740993.0, 1e22,   -3};
  const auto run = open();
  for (std::size_t i = 0; i < values.size(); ++i) run->write({.name = std::to_string(i), .context = kTrain}, values[i]);
  run->flush();
  const auto line = nlohmann::json::parse(lines().at(0));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = line.at(std::to_string(i)).get<double>();
    EXPECT_EQ(value, values[i]);
    EXPECT_EQ(std::signbit(value), std::signbit(values[i]));
  }
}

TEST_F(Jsonl, Writes_what_JSON_cannot_say_as_strings) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto run = open();
  run->write({.name = "a", .context = kTrain}, std::numeric_limits<double>::quiet_NaN());
  run->write({.name = "b", .context = kTrain}, infinity);
  run->write({.name = "c", .context = kTrain}, -infinity);
  run->flush();
  EXPECT_THAT(lines(), ElementsAre(R"({"step":0,"a":"NaN","b":"Infinity","c":"-Infinity"})"));
}

TEST_F(Jsonl, Writes_histograms_as_arrays_of_counts) {
  const auto run = open();
  run->write({.name = "experts", .context = kTrain}, CountHistogram{{3, 0, 5}});
  run->flush();
  EXPECT_THAT(lines(), ElementsAre(R"({"step":0,"experts":[3,0,5]})"));
}

TEST_F(Jsonl, Leaves_out_pictures) {
  const auto run = open();
  run->write({.name = "plot", .context = kTrain}, TrackerPicture{"<svg/>"});
  run->write({.name = "loss", .context = kTrain}, 2.5);
  run->flush();
  EXPECT_THAT(lines(), ElementsAre(R"({"step":0,"loss":2.5})"));
}

void write_steps(TrackerRun& run, std::int64_t first, std::int64_t last, double loss) {
  for (std::int64_t step = first; step <= last; ++step)
    run.write({.name = "loss", .step = step, .context = kTrain}, loss);
}

TEST_F(Jsonl, Resumed_has_each_step_once) {
  nlohmann::ordered_json state;
  {
    const auto run = open();
    write_steps(*run, 0, 1, 1);
    run->flush();
    state = run->state();
    write_steps(*run, 2, 3, 1);  // dropped: later than the checkpoint
  }
  const auto run = open(state);
  write_steps(*run, 2, 2, 2);
  run->flush();
  EXPECT_THAT(lines(), ElementsAre(R"({"step":0,"loss":1})", R"({"step":1,"loss":1})", R"({"step":2,"loss":2})"));
  EXPECT_EQ(run->state().dump(), R"({"last_step":2})");
}

TEST_F(Jsonl, Resumed_drops_a_line_that_a_crash_tore) {
  {
    const auto run = open();
    write_steps(*run, 0, 1, 1);
  }
  std::ofstream(path_, std::ios::app) << R"({"step":1,"lo)";
  write_steps(*open({{"last_step", 1}}), 2, 2, 2);
  EXPECT_THAT(lines(), ElementsAre(R"({"step":0,"loss":1})", R"({"step":1,"loss":1})", R"({"step":2,"loss":2})"));
}

TEST_F(Jsonl, Resumed_without_its_file_starts_one) {
  write_steps(*open({{"last_step", 1}}), 2, 2, 2);
  EXPECT_THAT(lines(), ElementsAre(R"({"step":2,"loss":2})"));
}

TEST_F(Jsonl, Fresh_keeps_the_file_of_an_earlier_run_aside) {
  write_steps(*open(), 0, 1, 1);
  write_steps(*open(), 0, 0, 2);
  EXPECT_THAT(lines(), ElementsAre(R"({"step":0,"loss":2})"));
  EXPECT_EQ(lines(".previous").size(), 2U);
}

TEST(JsonlTracker, Names_the_path_when_the_disk_is_full) {
  const auto run = JsonlTracker("/dev/full").open({.name = "a"});
  run->write({.name = "loss"}, 1.0);
  try {
    run->flush();
    FAIL() << "no error";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/dev/full"));
  }
}

TEST(JsonlTracker, Has_its_file_for_itself_while_a_run_is_open) {
  const std::filesystem::path path = test::fresh_directory("d") / "run" / "metrics.jsonl";
  const JsonlTracker tracker(path);
  const auto run = tracker.open({.name = "first"});
  EXPECT_THAT(test::message_of<IoError>([&] { (void)tracker.open({.name = "second"}); }),
              ::testing::AllOf(::testing::HasSubstr(path.string()), ::testing::HasSubstr("in use by no other job")));
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".previous"));
  run->close(RunOutcome::kCompleted);
  EXPECT_NO_THROW((void)tracker.open({.name = "third"}));
}

}  // namespace
}  // namespace d9d::jsonl_tracker_test
