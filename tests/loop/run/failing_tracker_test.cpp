// A tracker that fails does not change the training: a custom one that throws, and the helper process with a stub of
// Aim (tests/tracker/helper/stub) that dies, freezes or hangs at a value of step 1.
#include <sys/stat.h>

#include <cstdlib>
#include <set>

#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/tracker/helper/helper_tracker.h"
#include "d9d/tracker/run_info.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/io_faults.h"

namespace d9d::failing_tracker_test {
namespace {

using toy::Job;
using toy::samples;

struct Trained {
  std::vector<at::Tensor> parameters;
  std::string log;
  [[nodiscard]] std::ptrdiff_t num_warnings() const {
    std::ptrdiff_t count = 0;
    for (auto at = log.find("WARNING"); at != std::string::npos; at = log.find("WARNING", at + 1)) ++count;
    return count;
  }
};

Trained train_with(const std::shared_ptr<const Tracker>& tracker) {
  Job job(std::vector<std::vector<toy::Batch>>(6, {samples(0, 2)}));
  ::testing::internal::CaptureStderr();
  Trainer<toy::Types> trainer(job.context, job.config,
                              {.task = job.task,
                               .model = job.provider,
                               .data = job.provider,
                               .optimizer = *job.optimizer,
                               .lr_scheduler = job.lr_scheduler,
                               .tracker = tracker});
  EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
  Trained trained{.parameters = {}, .log = ::testing::internal::GetCapturedStderr()};
  EXPECT_EQ(Job::logged().size(), 6U);  // the tracker beside it
  for (const auto& [name, parameter] : trainer.module().named_parameters()) {
    trained.parameters.push_back(parameter->local().detach().clone());
  }
  return trained;
}

void expect_same_parameters(const Trained& trained) {
  const Trained alone = train_with(nullptr);
  EXPECT_EQ(alone.num_warnings(), 0) << alone.log;
  ASSERT_EQ(trained.parameters.size(), alone.parameters.size());
  for (std::size_t i = 0; i < alone.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(trained.parameters[i], alone.parameters[i]));
  }
}

class ThrowingRun final : public TrackerRun {
 public:
  ~ThrowingRun() override { close_in_destructor(); }

 private:
  void do_write(const TrackerPoint& point, const TrackerValue&) override {
    if (point.step == 1) throw IoError("no space left");
  }
};

class ThrowingTracker final : public Tracker {
 public:
  std::unique_ptr<TrackerRun> open(const RunInfo&) const override { return std::make_unique<ThrowingRun>(); }
};

TEST(FailingTracker, Of_the_program_costs_one_warning) {
  const Trained trained = train_with(std::make_shared<ThrowingTracker>());
  expect_same_parameters(trained);
  EXPECT_EQ(trained.num_warnings(), 1) << trained.log;
  EXPECT_THAT(trained.log, ::testing::HasSubstr("no space left"));
}

struct Harm {
  std::string name;
  std::string of_value;
  std::string warning;  // empty: none
};

// While it lives, processes find the stub of Aim, to which the loss of step 1 does what its value `name` does.
class StubOfAim {
 public:
  explicit StubOfAim(const std::string& name) {
    ::setenv("PYTHONPATH", D9D_SOURCE_DIR "/tests/tracker/helper/stub", /*overwrite=*/1);
    ::setenv("D9D_STUB_HARM", (name + ":loss:1").c_str(), /*overwrite=*/1);
  }
  ~StubOfAim() {
    ::unsetenv("PYTHONPATH");
    ::unsetenv("D9D_STUB_HARM");
  }
  StubOfAim(const StubOfAim&) = delete;
  StubOfAim& operator=(const StubOfAim&) = delete;
};

// Steps whose losses are in files of the stub.
std::set<std::int64_t> steps_in(const std::filesystem::path& folder) {
  std::set<std::int64_t> steps;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jsonl") continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      const auto call = nlohmann::json::parse(line);
      if (call[0] == "track" && call[2] == "loss") steps.insert(call[1].get<std::int64_t>());
    }
  }
  return steps;
}

class FailingHelper : public ::testing::TestWithParam<Harm> {};

TEST_P(FailingHelper, Trains_to_the_same_parameters_with_one_warning_and_keeps_every_value) {
  const StubOfAim stub(GetParam().of_value);
  const auto folder = std::filesystem::path(::testing::TempDir()) / ("d9d_failing_helper_" + GetParam().name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder / "runs");
  if (GetParam().of_value == "wait") {
    ASSERT_EQ(::mkfifo((folder / "runs/gate").c_str(), 0600), 0);  // nobody opens it
  }
  const AimTrackerConfig aim{.repo = folder / "runs", .python = D9D_TEST_PYTHON, .spool_dir = folder / "spool"};
  const auto tracker =
      std::make_shared<HelperTracker>(aim, HelperLimits{.without_answer = std::chrono::milliseconds(2000)});
  const Trained trained = train_with(tracker);
  EXPECT_EQ(trained.num_warnings(), GetParam().warning.empty() ? 0 : 1) << trained.log;
  EXPECT_THAT(trained.log, ::testing::HasSubstr(GetParam().warning));
  expect_same_parameters(trained);
  tracker->open({.name = "next"})->close(RunOutcome::kCompleted);  // replays what is in the spool
  EXPECT_THAT(steps_in(folder / "runs"), ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
}

INSTANTIATE_TEST_SUITE_P(Process, FailingHelper,
                         ::testing::Values(Harm{"well", "none", ""}, Harm{"killed", "die", "killed by signal 9"},
                                           Harm{"frozen", "freeze", "does not answer"},
                                           Harm{"slow", "wait", "does not answer"}),
                         [](const auto& harm) { return harm.param.name; });

TEST(FailingTracker, Trains_to_the_same_parameters_when_nothing_can_be_kept) {
  const StubOfAim stub("die");
  const auto folder = test::fresh_directory("d");
  const AimTrackerConfig aim{.repo = folder / "runs", .python = D9D_TEST_PYTHON, .spool_dir = "/dev/null/spool"};
  const Trained trained = train_with(std::make_shared<HelperTracker>(aim));
  EXPECT_THAT(trained.log, ::testing::HasSubstr("are lost"));
  expect_same_parameters(trained);
}

}  // namespace
}  // namespace d9d::failing_tracker_test
