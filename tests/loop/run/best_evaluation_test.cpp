// The best model of a job that evaluates: its checkpoint, its export, and jobs that continue.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/blocks/regularization/dropout.h"
#include "d9d/model_state/io/huggingface_directory.h"

#include "tests/loop/run/evaluated_job.h"
#include "tests/support/measured_series.h"

namespace d9d::best_evaluation_test {
namespace {

namespace fs = std::filesystem;
using evaluated_job::Evaluated;
using evaluated_job::Job;
using evaluated_job::kSteps;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

class BestEvaluation : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder()); }
  void TearDown() override { fs::remove_all(folder()); }

  static fs::path folder() {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    return fs::path(::testing::TempDir()) / cat("d9d_best_", test->name());
  }
  static std::vector<std::string> checkpoints() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder())) {
      if (entry.is_directory() && entry.path().filename().string().starts_with("save-")) {
        names.push_back(entry.path().filename());
      }
    }
    std::ranges::sort(names);
    return names;
  }
  // Evaluates after each step, with these scores one after the other.
  static void score(Job& job, std::vector<double> scores, std::int64_t num_before = 0) {
    job.config() = {.period_steps = {EverySteps{1}}, .best = BestConfig{.metric = "score", .mode = BestMode::kMax}};
    job.before = [&job, scores = std::move(scores), num_before](const EvaluationEvent& event) {
      job.task.score = scores.at(static_cast<std::size_t>(event.schedule.current_step() - 1 - num_before));
    };
    job.job.config.checkpointing.save_dir = folder();
    job.job.config.checkpointing.num_to_keep = 1;
  }
};

TEST_F(BestEvaluation, Is_saved_and_kept_until_a_better_one_comes) {
  Job job;
  score(job, {1, 3, 2, std::numeric_limits<double>::quiet_NaN()});
  job.job.config.checkpointing.period_steps = {EverySteps{3}};
  std::vector<std::string> before_third;
  job.after = [&](const FinishedEvaluation& event) {
    if (event.schedule.current_step() == 3) before_third = checkpoints();
  };
  job.train();
  std::vector<bool> are_best;
  for (const Evaluated& each : job.evaluated) are_best.push_back(each.is_best);
  EXPECT_THAT(are_best, ElementsAre(true, true, false, false));
  EXPECT_THAT(checkpoints(), ElementsAre("save-2", "save-4"));
}

TEST_F(BestEvaluation, Of_the_last_step_takes_the_place_of_the_one_before) {
  Job job;
  score(job, {1, 3, 2, 4});
  job.job.config.checkpointing.period_steps = {EverySteps{3}};
  job.train();
  EXPECT_THAT(checkpoints(), ElementsAre("save-3", "save-4")) << "not save-2, the best before";
}

TEST_F(BestEvaluation, Of_a_resumed_job_is_compared_with_those_before) {
  for (const bool are_better : {false, true}) {
    fs::remove_all(folder());
    Job first;
    score(first, {3, 1});
    first.job.config.schedule.total_steps = 2;
    first.job.config.checkpointing.period_steps = {EverySteps{1}};
    first.train();
    EXPECT_THAT(checkpoints(), ElementsAre("save-1", "save-2"));
    Job second;
    score(second, {are_better ? 4.0 : 2.0, 1}, /*num_before=*/2);
    second.job.config.checkpointing.period_steps = {EverySteps{1}};
    second.train();
    EXPECT_THAT(second.steps(), ElementsAre(3, 4)) << "the evaluation of step 2 is not repeated";
    EXPECT_EQ(second.evaluated.front().is_best, are_better);
    EXPECT_THAT(checkpoints(), ElementsAre(are_better ? "save-3" : "save-1", "save-4"));
  }
}

TEST_F(BestEvaluation, Stays_until_a_better_one_is_on_disk) {
  Job job;
  score(job, {1, 3, 2, 2});
  job.job.config.checkpointing.period_steps = {EverySteps{1}};
  job.job.config.checkpointing.on_failed_save = FailedSavePolicy::kContinue;
  job.after = [&](const FinishedEvaluation& event) {  // in the way of the save of the better one
    if (event.schedule.current_step() == 2) fs::create_directory(folder() / "save-2");
  };
  job.train();
  EXPECT_THAT(checkpoints(), ElementsAre("save-1", "save-2", "save-4"));
  EXPECT_FALSE(fs::exists(folder() / "save-2" / "manifest.json"));
}

// Asks to stop at the second evaluation that is worse than the one before it.
struct Patience {
  void after_evaluation(const FinishedEvaluation& evaluation) {
    num_worse += evaluation.is_best ? 0 : 1;
    if (num_worse == 2) evaluation.stop.request("two were worse");
  }
  static constexpr auto handlers() { return std::tuple(on(kTrainEvaluationPost, &Patience::after_evaluation)); }
  nlohmann::json state() const { return num_worse; }
  void load_state(const nlohmann::json& state) { num_worse = state; }
  int num_worse = 0;
};

TEST_F(BestEvaluation, Is_waited_for_by_a_handler_whose_state_is_saved) {
  for (const bool is_second : {false, true}) {
    Job job;
    score(job, {3, 2, 1, 0});
    job.job.config.checkpointing.period_steps = {EverySteps{1}};
    if (!is_second) job.job.config.schedule.total_steps = 2;
    Patience patience;
    Trainer<toy::Types> trainer = job.trainer();
    trainer.events().attach("patience", patience);
    EXPECT_EQ(patience.num_worse, is_second ? 1 : 0) << "attached when the checkpoint was loaded";
    EXPECT_EQ(trainer.train(), is_second ? TrainingOutcome::kStopped : TrainingOutcome::kFinished);
    EXPECT_EQ(job.steps(), is_second ? std::vector<std::int64_t>{3} : (std::vector<std::int64_t>{1, 2}));
  }
}

TEST_F(BestEvaluation, Is_exported_if_that_is_configured) {
  Job job;
  score(job, {1, 3, 2, 1});
  job.config().best->export_to = folder() / "best";
  job.job.config.checkpointing.period_steps = {StepActionMode::kDisable};
  at::Tensor best;
  job.after = [&](const FinishedEvaluation& event) {
    if (event.is_best) best = job.job.provider.model->first->weight->stored().detach().clone();
  };
  job.train();
  const HuggingFaceDirectory exported(folder() / "best");
  EXPECT_TRUE(at::equal(exported.find("first.weight")->read(), best));
  EXPECT_FALSE(fs::exists(folder() / "save-4")) << "a job that does not save";
}

TEST_F(BestEvaluation, Needs_a_known_metric_and_a_place) {
  Job job;
  score(job, {1, 1, 1, 1});
  job.job.config.checkpointing.period_steps = {StepActionMode::kDisable};
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<ConfigError>(AllOf(HasSubstr("trainer.evaluation.validation.best"),
                                                                     HasSubstr("export_to"))));
  job.config().best->export_to = folder() / "best";
  job.config().best->metric = "scores";
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<ConfigError>(AllOf(HasSubstr("'scores'"), HasSubstr("num_samples"))));
}

TEST_F(BestEvaluation, Is_kept_by_a_start_that_does_not_look_for_it) {
  const auto train = [](std::vector<double> scores, std::int64_t total, std::int64_t num_before, bool looks) {
    Job job;
    score(job, std::move(scores), num_before);
    job.job.config.checkpointing.period_steps = {EverySteps{1}};
    job.job.config.schedule.total_steps = total;
    if (!looks) job.config().best.reset();
    job.train();
    return job.evaluated;
  };
  (void)train({9}, 1, 0, true);
  (void)train({5, 5}, 3, 1, false);
  EXPECT_THAT(checkpoints(), ElementsAre("save-1", "save-3"));
  EXPECT_FALSE(train({8}, 4, 3, true).back().is_best);
}

TEST_F(BestEvaluation, Needs_a_place_for_exports_that_is_free) {
  fs::create_directories(folder() / "best");
  std::ofstream(folder() / "best" / "notes.txt") << "of somebody else";
  Job job;
  score(job, {1, 1, 1, 1});
  job.config().best->export_to = folder();
  job.job.config.checkpointing.period_steps = {EverySteps{1}};
  EXPECT_THAT([&] { job.train(); },
              ThrowsMessage<ConfigError>(HasSubstr("trainer.evaluation.validation.best.export_to")));
  EXPECT_THAT(job.steps(), IsEmpty()) << "refused before a step";
}

TEST_F(BestEvaluation, Of_the_last_step_that_a_signal_ended_is_made_once_at_the_next_start) {
  for (int start = 0; start < 3; ++start) {
    Job job;
    score(job, {1, 2, 3, 4});
    job.config().best->export_to = folder() / "best";
    job.job.config.checkpointing.period_steps = {EverySteps{4}};
    const auto ask = job.before;
    job.before = [&](const EvaluationEvent& event) {
      ask(event);
      if (start == 0 && event.schedule.current_step() == 4) std::raise(SIGTERM);
    };
    EXPECT_EQ(job.train(), start == 0 ? TrainingOutcome::kInterrupted : TrainingOutcome::kFinished) << start;
    EXPECT_EQ(job.steps(), start == 0   ? (std::vector<std::int64_t>{1, 2, 3})
                           : start == 1 ? std::vector<std::int64_t>{4}
                                        : std::vector<std::int64_t>{});
  }
}

TEST_F(BestEvaluation, Of_a_job_that_a_signal_ended_is_made_when_it_resumes) {
  Job job;
  score(job, {1, 2, 3, 4});
  job.job.config.checkpointing.period_steps = {EverySteps{4}};
  const auto ask = job.before;
  job.before = [&](const EvaluationEvent& event) {
    ask(event);
    if (event.schedule.current_step() == 2) std::raise(SIGTERM);
  };
  EXPECT_EQ(job.train(), TrainingOutcome::kInterrupted);
  EXPECT_THAT(job.steps(), ElementsAre(1));
  EXPECT_THAT(checkpoints(), ElementsAre("save-1", "save-2")) << "no finished step is lost";
  Job again;
  score(again, {1, 2, 3, 4});
  again.job.config.checkpointing.period_steps = {EverySteps{4}};
  EXPECT_EQ(again.train(), TrainingOutcome::kFinished);
  EXPECT_THAT(again.steps(), ElementsAre(2, 3, 4));
}

}  // namespace
}  // namespace d9d::best_evaluation_test
