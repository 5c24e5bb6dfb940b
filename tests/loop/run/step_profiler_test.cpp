// Traces of steps: which steps, which files, and which names they have.
#include "d9d/loop/run/step_profiler.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/run/toy_job.h"
#include "tests/support/measured_series.h"
#include "tests/support/ranks.h"

namespace d9d::step_profiler_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kSteps = 7;

class StepTraces : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder()); }
  void TearDown() override { fs::remove_all(folder()); }

  static fs::path folder() {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    return fs::path(::testing::TempDir()) / cat("d9d_traces_", test->name());
  }
  struct Job : toy::Job {
    explicit Job(std::int64_t first = 0) : toy::Job(packs(first)) {
      config.profiling = {.traces_dir = folder(), .period_steps = 3, .warmup_steps = 1, .active_steps = 1};
    }
    static std::vector<std::vector<toy::Batch>> packs(std::int64_t first) {
      std::vector<std::vector<toy::Batch>> packs;
      for (std::int64_t step = 0; step < kSteps; ++step) packs.push_back({toy::samples(first + 2 * step, 2)});
      return packs;
    }
  };
  static std::vector<std::string> files() {
    std::vector<std::string> files;
    if (!fs::exists(folder())) return files;
    for (const auto& entry : fs::recursive_directory_iterator(folder())) {
      if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), folder()));
    }
    return files;
  }
  // The names of the events in a trace.
  static std::set<std::string> names_in(const std::string& file) {
    std::ifstream stream(folder() / file);
    std::set<std::string> names;
    const auto trace = nlohmann::json::parse(stream);
    for (const auto& event : trace.at("traceEvents")) names.insert(event.at("name"));
    return names;
  }
};

TEST_F(StepTraces, Are_of_the_last_steps_of_each_period_with_names) {
  Job().train();
  EXPECT_THAT(files(), UnorderedElementsAre("steps-2-2/rank0.json", "steps-5-5/rank0.json"));
  const auto names = names_in("steps-2-2/rank0.json");
  EXPECT_THAT(names, IsSupersetOf({"step 2", "data", "forward and backward", "0F0", "0B0", "gradients and optimizer",
                                   "model", "first", "aten::tanh"}));
  EXPECT_THAT(names, Not(Contains("step 1")));
  EXPECT_THAT(names, Not(Contains("step 3")));
}

TEST_F(StepTraces, Leave_out_modules_if_asked_and_cover_several_steps) {
  Job several;
  several.config.profiling = {
      .traces_dir = folder(), .period_steps = 5, .warmup_steps = 0, .active_steps = 2, .with_stack = false};
  several.train();
  EXPECT_THAT(files(), UnorderedElementsAre("steps-3-4/rank0.json"));
  const auto names = names_in("steps-3-4/rank0.json");
  EXPECT_THAT(names, IsSupersetOf({"step 3", "step 4"}));
  EXPECT_THAT(names, Not(Contains("first")));
}

TEST_F(StepTraces, Have_the_shapes_of_inputs_if_asked) {
  for (const bool has_shapes : {true, false}) {
    Job each;
    each.config.profiling->record_shapes = has_shapes;
    each.train();
    std::ifstream stream(folder() / "steps-2-2" / "rank0.json");
    const std::string text((std::istreambuf_iterator<char>(stream)), {});
    EXPECT_EQ(text.find("Input Dims") != std::string::npos, has_shapes);
  }
}

TEST_F(StepTraces, Change_nothing_in_training) {
  const auto logged = [](bool traces) {
    Job each;
    if (!traces) each.config.profiling.reset();
    each.train();
    auto lines = toy::Job::logged();
    for (nlohmann::json& line : lines) test::drop_measured(line);
    return lines;
  };
  EXPECT_EQ(logged(true), logged(false));
}

TEST_F(StepTraces, Have_one_file_for_ranks_that_are_threads_by_the_first_that_records) {
  for (const bool is_left_out : {false, true}) {
    fs::remove_all(folder());
    test::run_ranks(test::RankBackend::kThreads, 2, [&](World& world) {
      const DistContext context({.mesh = {.data_parallel_replicate = 2}, .world = test::borrowed(world)});
      Job each(100 * world.rank());
      if (is_left_out) each.config.profiling->ranks = {{1}};
      (void)each.make_trainer(context, each.task).train();
    });
    const std::string name = is_left_out ? "dp_replicate1.json" : "dp_replicate0.json";
    EXPECT_THAT(files(), UnorderedElementsAre("steps-2-2/" + name, "steps-5-5/" + name));
  }
}

TEST_F(StepTraces, Of_a_run_that_ends_in_a_warm_up_or_a_recording_leave_the_profiler_to_the_next) {
  for (const std::int64_t total : {5, 6}) {  // ends in the warm-up of steps 4 and 5; in the recording of step 5
    fs::remove_all(folder());
    Job each;
    each.config.schedule.total_steps = total;
    each.config.profiling->active_steps = total == 5 ? 1 : 2;
    each.config.profiling->period_steps = total == 5 ? 3 : 4;
    each.train();
    if (total == 5) {
      EXPECT_THAT(files(), UnorderedElementsAre("steps-2-2/rank0.json"));
    } else {
      EXPECT_THAT(files(), UnorderedElementsAre("steps-2-3/rank0.json"));
    }
    Job next;
    next.train();
    EXPECT_THAT(files(), Contains("steps-5-5/rank0.json"));
  }
}

TEST_F(StepTraces, Of_a_run_that_ends_while_it_records_have_what_was_recorded) {
  Job each;
  each.config.schedule.total_steps = 3;
  each.config.profiling = {.traces_dir = folder(), .period_steps = 4, .warmup_steps = 0, .active_steps = 3};
  each.train();
  EXPECT_THAT(files(), UnorderedElementsAre("steps-1-2/rank0.json"));
}

TEST_F(StepTraces, Refuse_snapshots_of_memory_without_a_CUDA_device) {
  Job each;
  each.config.profiling->memory_snapshots = true;
  EXPECT_THAT([&] { (void)each.make_trainer(); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("profiling.memory_snapshots"), HasSubstr("got cpu"))));
  EXPECT_EQ(each.provider.num_models, 0);
}

TEST_F(StepTraces, Need_a_folder_that_can_be_written) {
  std::ofstream(folder()) << "a file";
  Job each;
  EXPECT_THAT([&] { each.train(); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("profiling.traces_dir"), HasSubstr(folder().string()))));
}

}  // namespace
}  // namespace d9d::step_profiler_test
