// Tests what a job writes, and to which trackers.
#include <malloc.h>

#include <atomic>
#include <csignal>

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/blocks/moe/moe_layer.h"
#include "d9d/tracker/run_info.h"

#include "tests/loop/run/toy_job.h"

namespace d9d::logging_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
using toy::Job;
using toy::samples;

std::vector<std::vector<toy::Batch>> packs(std::int64_t count) {
  return std::vector<std::vector<toy::Batch>>(static_cast<std::size_t>(count), {samples(0, 2)});
}

// ---- A tracker that is not part of the library. ----

struct Noted {
  RunInfo info;
  std::vector<std::string> losses;  // "step: value"
  std::vector<RunOutcome> outcomes;
  std::vector<std::string> pictures;  // "step: name svg"
};

class NotingRun final : public TrackerRun {
 public:
  explicit NotingRun(Noted& noted) : noted_(noted) {}
  ~NotingRun() override { close_in_destructor(); }

 private:
  void do_write(const TrackerPoint& point, const TrackerValue& value) override {
    if (const auto* picture = std::get_if<TrackerPicture>(&value)) {
      noted_.pictures.push_back(cat(point.step, ": ", point.name, ' ', picture->svg));
    }
    if (point.name == "loss") noted_.losses.push_back(cat(point.step, ": ", std::get<double>(value)));
  }
  void do_close(RunOutcome outcome) override { noted_.outcomes.push_back(outcome); }

  Noted& noted_;
};

class NotingTracker final : public Tracker {
 public:
  explicit NotingTracker(Noted& noted) : noted_(noted) {}
  std::unique_ptr<TrackerRun> open(const RunInfo& info) const override {
    noted_.info = info;
    return std::make_unique<NotingRun>(noted_);
  }

 private:
  Noted& noted_;
};

Trainer<toy::Types> make_trainer(Job& job, Noted& noted) {
  return {job.context,
          job.config,
          {.task = job.task,
           .model = job.provider,
           .data = job.provider,
           .optimizer = *job.optimizer,
           .lr_scheduler = job.lr_scheduler,
           .tracker = std::make_shared<NotingTracker>(noted)}};
}

TEST(Logging, Reaches_a_tracker_of_the_program_beside_the_configured_one) {
  Job job(packs(2));
  Noted noted;
  EXPECT_EQ(make_trainer(job, noted).train(), TrainingOutcome::kFinished);
  const auto lines = Job::logged();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(noted.losses,
              ElementsAre(cat("0: ", lines[0]["loss"].get<double>()), cat("1: ", lines[1]["loss"].get<double>())));
  EXPECT_THAT(noted.outcomes, ElementsAre(RunOutcome::kCompleted));
}

TEST(Logging, Gives_trackers_the_curve_of_the_learning_rate_before_the_first_step) {
  Job job(packs(2));
  Noted noted;
  (void)make_trainer(job, noted).train();
  EXPECT_THAT(noted.pictures, ElementsAre(AllOf(StartsWith("-1: lr_schedule <svg "), HasSubstr("learning rate"))));
}

TEST(Logging, Closes_a_tracker_of_the_program_as_failed_when_the_task_throws) {
  Job job(packs(3));
  job.task.throws_at_step = 1;
  Noted noted;
  auto trainer = make_trainer(job, noted);
  EXPECT_THAT([&] { (void)trainer.train(); }, ThrowsMessage<UsageError>(HasSubstr("the task throws")));
  EXPECT_EQ(noted.losses.size(), 1U);
  EXPECT_THAT(noted.outcomes, ElementsAre(RunOutcome::kFailed));
}

struct StoppedTask : toy::Task {
  LossResult compute_loss(const Output& output, State& state, const JobSchedule& schedule) override {
    if (schedule.current_step() == stopped_in_step) (void)std::raise(SIGTERM);
    return toy::Task::compute_loss(output, state, schedule);
  }
  std::int64_t stopped_in_step = 0;
};

TEST(Logging, Tells_trackers_of_a_signal_that_comes_before_the_last_step) {
  const auto outcomes = [](std::int64_t stopped_in_step) {
    Job job(packs(3));
    StoppedTask task;
    task.stopped_in_step = stopped_in_step;
    Noted noted;
    (void)Trainer<toy::Types>(job.context, job.config,
                              {.task = task,
                               .model = job.provider,
                               .data = job.provider,
                               .optimizer = *job.optimizer,
                               .lr_scheduler = job.lr_scheduler,
                               .tracker = std::make_shared<NotingTracker>(noted)})
        .train();
    return noted.outcomes;
  };
  EXPECT_THAT(outcomes(1), ElementsAre(RunOutcome::kStopped));
  EXPECT_THAT(outcomes(2), ElementsAre(RunOutcome::kCompleted));
}

struct TaskWithHparams : toy::Task {
  nlohmann::json dump_hparams() const override { return {{"window", 7}}; }
};
struct ProviderWithHparams : toy::Provider {
  nlohmann::json dump_hparams() const override { return {{"width", 3}}; }
};

TEST(Logging, Hands_the_hyper_parameters_of_run_task_and_model_to_the_tracker) {
  Job job(packs(1));
  TaskWithHparams task;
  ProviderWithHparams provider;
  provider.packs = packs(1);
  job.config.run = {.name = "named", .description = "What it is.", .hparams = {{"seed", 1}}};
  Noted noted;
  (void)Trainer<toy::Types>(job.context, job.config,
                            {.task = task,
                             .model = provider,
                             .data = provider,
                             .optimizer = *job.optimizer,
                             .lr_scheduler = job.lr_scheduler,
                             .tracker = std::make_shared<NotingTracker>(noted)})
      .train();
  EXPECT_EQ(noted.info.name, "named");
  EXPECT_EQ(noted.info.description, "What it is.");
  EXPECT_EQ(noted.info.hparams.dump(), R"({"run":{"seed":1},"params":{"model":{"width":3},"task":{"window":7}}})");
}

// ---- When values are written. ----

std::vector<std::int64_t> steps_with(const char* name) {
  std::vector<std::int64_t> steps;
  for (const auto& line : Job::logged()) {
    if (line.contains(name)) steps.push_back(line["step"]);
  }
  return steps;
}

TEST(Logging, Writes_the_gradient_norm_at_its_own_period) {
  Job job(packs(5));
  job.config.gradient_clipping.log_total_steps = {EverySteps{2}};
  job.train();
  EXPECT_THAT(steps_with("grad_norm"), ElementsAre(1, 3));
  EXPECT_THAT(steps_with("loss"), ElementsAre(0, 1, 2, 3, 4));
}

TEST(Logging, Writes_the_gradient_norm_at_the_last_step_only_or_never_if_asked) {
  Job last(packs(3));
  last.config.gradient_clipping.log_total_steps = {StepActionMode::kLastStep};
  last.train();
  EXPECT_THAT(steps_with("grad_norm"), ElementsAre(2));
  Job never(packs(3));
  never.config.gradient_clipping.log_total_steps = {StepActionMode::kDisable};
  never.train();
  EXPECT_THAT(steps_with("grad_norm"), ElementsAre());
}

// ---- Load balancing of experts. ----

constexpr std::int64_t kNumExperts = 4;

struct ExpertTypes {
  using Batch = at::Tensor;  // [tokens, kNumExperts], one-hot rows: which expert a token chooses
  using Input = at::Tensor;
  using Shared = std::monostate;
  using Output = at::Tensor;
  using State = std::monostate;
};

struct ExpertTask : TrainTask<ExpertTypes> {
  ForwardInputs<ExpertTypes> build_forward_inputs(const at::Tensor& batch) override {
    return {.input = batch, .shared = {}, .state = {}, .num_tokens = batch.size(0)};
  }
  LossResult compute_loss(const at::Tensor& output, std::monostate&, const JobSchedule&) override {
    return {.loss = output.square().sum()};
  }
};

struct ExpertModel : Module {
  at::Tensor forward(const at::Tensor& tokens, const std::monostate&) { return mlp(tokens).hidden_states; }
  void after_reset(std::uint64_t, const std::string&) override {
    const at::NoGradGuard no_grad;
    mlp->router->gate->weight->local().copy_(10 * at::eye(kNumExperts));
  }
  const ModulePtr<MoELayer> mlp = register_module<MoELayer>("mlp", MoELayerConfig{.hidden_size = kNumExperts,
                                                                                  .intermediate_size = 2,
                                                                                  .num_experts = kNumExperts,
                                                                                  .top_k = 1,
                                                                                  .shared_expert = {},
                                                                                  .grouped_mm_backend = {}});
};

struct ExpertProvider : ModelProvider<ExpertTypes>, DataProvider<at::Tensor> {
  struct Stream {
    std::optional<std::vector<at::Tensor>> next() { return packs.at(position++); }
    std::optional<std::int64_t> total_steps() const { return std::ssize(packs); }
    nlohmann::json state() const { return position; }
    void load_state(const nlohmann::json& state) { position = state; }
    std::vector<std::vector<at::Tensor>> packs;
    std::size_t position = 0;
  };
  ModelStage<ExpertTypes> initialize_model_stage(const DistContext&, const PipelineStageInfo&) override {
    return as_model_stage<ExpertTypes>(make_module<ExpertModel>());
  }
  std::unique_ptr<PackStream<at::Tensor>> build_pack_stream(const DistContext&, std::optional<std::int64_t>) override {
    return as_pack_stream<at::Tensor>(Stream{.packs = packs});
  }
  std::vector<std::vector<at::Tensor>> packs;
};

// One-hot rows of the given experts.
at::Tensor tokens_of(const std::vector<std::int64_t>& experts) {
  return at::eye(kNumExperts).index_select(0, at::tensor(experts, at::kLong));
}

TEST(Logging, Writes_how_much_the_busiest_expert_had_over_the_mean_of_a_step) {
  Job job({});
  job.config.schedule.total_steps = 3;
  ExpertTask task;
  ExpertProvider provider;
  provider.packs = {{tokens_of({0, 0, 0, 0}), tokens_of({0, 1, 1, 2})},  // 5, 2, 1, 0 tokens
                    {tokens_of({0, 1, 2, 3})},
                    {tokens_of({3, 3})}};
  (void)Trainer<ExpertTypes>(job.context, job.config,
                             {.task = task,
                              .model = provider,
                              .data = provider,
                              .optimizer = *job.optimizer,
                              .lr_scheduler = job.lr_scheduler})
      .train();
  const auto lines = Job::logged();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["mlp/expert_load_max"], 5.0 / 2.0);
  EXPECT_EQ(lines[1]["mlp/expert_load_max"], 1.0);
  EXPECT_EQ(lines[2]["mlp/expert_load_max"], 4.0);
}

struct MisnamingTask : ExpertTask {
  MetricMap create_metrics() override { return {{"mlp/expert_load_max", std::make_shared<SumMetric>()}}; }
};

TEST(Logging, Refuses_a_metric_with_the_name_of_a_statistic_of_a_module) {
  Job job({});
  job.config.schedule.total_steps = 1;
  MisnamingTask task;
  ExpertProvider provider;
  provider.packs = {{tokens_of({0, 1})}};
  Trainer<ExpertTypes> trainer(job.context, job.config,
                               {.task = task,
                                .model = provider,
                                .data = provider,
                                .optimizer = *job.optimizer,
                                .lr_scheduler = job.lr_scheduler});
  EXPECT_THAT([&] { (void)trainer.train(); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("'mlp/expert_load_max'"), HasSubstr("create_metrics"))));
}

// ---- Freed memory. ----

std::atomic<int> num_trims = 0;  // lint: allow(mutable-global): counts calls of the function that replaces libc's

TEST(FreedMemory, Goes_back_to_the_system_at_the_period_of_gc) {
  const auto trims_of = [](const StepActionPeriod& period) {
    Job job(packs(6));
    job.config.gc.period_steps = period;
    num_trims = 0;
    job.train();
    return num_trims.load();
  };
  EXPECT_EQ(trims_of({EverySteps{2}}), 3);
  EXPECT_EQ(trims_of({StepActionMode::kLastStep}), 1);
  EXPECT_EQ(trims_of({StepActionMode::kDisable}), 0);
}

}  // namespace
}  // namespace d9d::logging_test

// Replaces the function of libc in calls of the library.
extern "C" int malloc_trim(std::size_t) noexcept {
  ++d9d::logging_test::num_trims;
  return 1;
}
