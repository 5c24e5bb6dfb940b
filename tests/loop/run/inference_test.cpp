// A model runs over data without training, on one rank and on several, and continues after it was killed.
#include "d9d/loop/run/inference.h"

#include <malloc.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::inference_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

// Keeps the first feature of each sample, and whether gradients and training mode are off.
class Collect : public InferenceTask<toy::Types> {
 public:
  ForwardInputs<toy::Types> build_forward_inputs(const toy::Batch& batch) override {
    return {.input = batch.x, .state = {.batch = batch, .output = {}, .token = {}}, .num_tokens = batch.x.size(0)};
  }
  void process_outputs(const at::Tensor& output, const toy::State& state) override {
    EXPECT_FALSE(output.requires_grad());
    EXPECT_EQ(output.size(0), state.batch.x.size(0));
    for (std::int64_t i = 0; i < output.size(0); ++i) {
      seen.push_back(state.batch.weights[i].item<double>());
      outputs.push_back(output[i].item<double>());
    }
    if (on_processed) on_processed();
  }
  nlohmann::json state() const override {
    std::this_thread::sleep_for(time_to_save);
    return seen;
  }
  void load_state(const std::vector<nlohmann::json>& of_ranks) override {
    for (const nlohmann::json& each : of_ranks) {
      for (const double number : each.get<std::vector<double>>()) loaded.push_back(number);
    }
  }
  void register_events(const DistContext&, EventBus& events) override {
    const auto note = [&]<class Context>(const Event<Context>& event) {
      events.subscribe(event, [this, event](const Context&) { order.emplace_back(event.id); });
    };
    note(kInferenceConfigStarted), note(kInferenceDataStreamReady<toy::Batch>), note(kInferenceModelStagesReady);
    note(kInferenceReady), note(kInferenceStepPre), note(kInferenceForwardPre), note(kInferenceForwardPost);
    note(kInferenceStepPost), note(kInferenceFinished);
  }
  void finalize() override { order.emplace_back("finalize"); }

  std::vector<double> seen, outputs, loaded;
  std::vector<std::string> order;
  std::function<void()> on_processed;
  std::chrono::milliseconds time_to_save{0};
};

std::vector<std::vector<toy::Batch>> packs(std::int64_t count, std::int64_t first = 0) {
  std::vector<std::vector<toy::Batch>> packs;
  for (std::int64_t i = 0; i < count; ++i)
    packs.push_back({toy::samples(first + 2 * i, 1), toy::samples(first + 2 * i + 1, 1)});
  return packs;
}

struct Job {
  explicit Job(std::vector<std::vector<toy::Batch>> data) {
    provider.packs = std::move(data);
    config.gc.period_steps = {StepActionMode::kDisable};
    config.checkpointing.period_steps = {StepActionMode::kDisable};
  }
  TrainingOutcome run(const DistContext& ranks) {
    Inference<toy::Types> inference(ranks, config, {.task = task, .model = provider, .data = provider});
    const TrainingOutcome outcome = inference.infer();
    num_packs = inference.schedule().current_step();
    return outcome;
  }
  TrainingOutcome run() { return run(context); }

  DistContext context = DistContext({.world = one_rank_world()});
  InferenceConfig config;
  Collect task;
  toy::Provider provider;
  std::int64_t num_packs = 0;
};

TEST(Inference, Processes_each_sample_in_order_with_the_model_in_evaluation_mode) {
  Job job(packs(3));
  EXPECT_EQ(job.run(), TrainingOutcome::kFinished);
  EXPECT_THAT(job.task.seen, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(job.num_packs, 3);
  const at::NoGradGuard no_grad;
  for (std::int64_t i = 0; i < 6; ++i) {
    const at::Tensor x = toy::samples(i, 1).x;
    const at::Tensor expected = job.provider.model->second(at::tanh(job.provider.model->first(x)));
    EXPECT_EQ(job.task.outputs[static_cast<std::size_t>(i)], expected.item<double>());
  }
  EXPECT_TRUE(job.provider.model->is_training()) << "the mode comes back";
}

TEST(Inference, Triggers_its_events_in_order) {
  Job job(packs(1));
  job.run();
  EXPECT_THAT(job.task.order,
              ElementsAre("inference.configuration.start", "inference.configuration.data_stream",
                          "inference.configuration.model_stages", "inference.ready", "inference.step.pre",
                          "inference.forward.pre", "inference.forward.post", "inference.step.post",
                          "inference.step.pre", "finalize", "inference.finished"));
}

TEST(Inference, Sleeps_before_and_after_its_packs) {
  const SleepTags both = {SleepTag::kTensorStates, SleepTag::kComms};
  Job job(packs(2));
  Inference<toy::Types> inference(job.context, job.config,
                                  {.task = job.task, .model = job.provider, .data = job.provider});
  inference.sleep(both);
  EXPECT_TRUE(inference.is_sleeping(SleepTag::kComms));
  EXPECT_THAT([&] { inference.infer(); },
              ThrowsMessage<StateError>(HasSubstr("expected a job that is awake to infer")));
  inference.wake();
  job.task.on_processed = [&] {
    EXPECT_THAT([&] { inference.sleep(); }, ThrowsMessage<StateError>(HasSubstr("got a call while packs run")));
  };
  EXPECT_EQ(inference.infer(), TrainingOutcome::kFinished);
  EXPECT_THAT(job.task.seen, ElementsAre(1, 2, 3, 4));
  inference.sleep(both);
  inference.wake();
}

TEST(Inference, Needs_no_more_memory_for_more_packs) {
  Job job(packs(1200));
  std::size_t after_200 = 0, after_1200 = 0;
  std::int64_t num_processed = 0;
  job.task.on_processed = [&] {
    job.task.seen.clear(), job.task.outputs.clear(), job.task.order.clear();  // what this test itself collects
    job.provider.model->clocks.clear();
    if (++num_processed == 2 * 200) after_200 = mallinfo2().uordblks;
    if (num_processed == 2 * 1200) after_1200 = mallinfo2().uordblks;
  };
  EXPECT_EQ(job.run(), TrainingOutcome::kFinished);
  EXPECT_LT(after_1200, after_200 + 100'000) << "bytes in use; a pack has more than 1,000";
}

TEST(Inference, Ends_at_the_steps_that_are_configured) {
  Job job(packs(3));
  job.config.schedule.total_steps = 2;
  job.provider.known_total = 3;
  EXPECT_EQ(job.run(), TrainingOutcome::kFinished);
  EXPECT_THAT(job.task.seen, ElementsAre(1, 2, 3, 4));
}

TEST(Inference, On_ranks_with_unequally_much_data_processes_each_sample_once) {
  std::mutex mutex;
  std::vector<double> seen;
  test::run_ranks(test::RankBackend::kThreads, 3, [&](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 3}, .world = test::borrowed(world)});
    Job job(packs(world.rank() == 2 ? 1 : 2, 4 * world.rank()));  // ten samples: 4, 4 and 2
    EXPECT_EQ(job.run(context), TrainingOutcome::kFinished);
    const std::lock_guard lock(mutex);
    seen.insert(seen.end(), job.task.seen.begin(), job.task.seen.end());
  });
  EXPECT_THAT(seen, UnorderedElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
}

class InferencePosition : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder()); }
  void TearDown() override { fs::remove_all(folder()); }
  static fs::path folder() {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    return fs::path(::testing::TempDir()) / cat("d9d_inference_", test->name());
  }
  static CheckpointingConfig saves() {
    return {.save_dir = folder(), .period_steps = {EverySteps{2}}, .num_to_keep = 1};
  }
};

TEST_F(InferencePosition, Is_saved_and_continued_without_weights) {
  Job killed(packs(5));
  killed.config.checkpointing = saves();
  killed.task.on_processed = [&] {
    D9D_CHECK(killed.task.seen.size() < 7, UsageError, "[test] killed in the fourth pack.");
  };
  EXPECT_THROW(killed.run(), UsageError);
  std::uintmax_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder())) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  EXPECT_LT(bytes, 4096U);
  Job again(packs(5));
  again.config.checkpointing = saves();
  EXPECT_EQ(again.run(), TrainingOutcome::kFinished);
  EXPECT_THAT(again.task.loaded, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(again.task.seen, ElementsAre(5, 6, 7, 8, 9, 10));
  Job done(packs(5));
  done.config.checkpointing = saves();
  done.config.schedule.total_steps = 5;
  done.provider.known_total = 5;
  EXPECT_EQ(done.run(), TrainingOutcome::kFinished);
  EXPECT_THAT(done.task.seen, IsEmpty());
}

TEST_F(InferencePosition, May_take_longer_to_save_than_a_step) {
  test::run_ranks(test::RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 2}, .world = test::borrowed(world)});
    Job job(packs(5));
    job.config.checkpointing = saves();
    job.config.timeout = {.init_timeout = 60, .step_timeout = 1};
    if (world.rank() == 1) job.task.time_to_save = std::chrono::milliseconds(1500);
    EXPECT_EQ(job.run(context), TrainingOutcome::kFinished);
    EXPECT_EQ(world.timeout(), std::chrono::seconds(60));
  });
}

TEST_F(InferencePosition, Of_a_job_that_a_signal_or_the_program_ends_loses_no_sample) {
  for (const bool by_signal : {true, false}) {
    fs::remove_all(folder());
    {
      Job first(packs(5));
      first.config.checkpointing = saves();
      Inference<toy::Types> inference(first.context, first.config,
                                      {.task = first.task, .model = first.provider, .data = first.provider});
      first.task.on_processed = [&] {
        if (first.task.seen.size() != 5) return;
        by_signal ? static_cast<void>(std::raise(SIGTERM)) : inference.request_stop("enough");
      };
      EXPECT_EQ(inference.infer(), by_signal ? TrainingOutcome::kInterrupted : TrainingOutcome::kStopped);
      EXPECT_THAT(first.task.seen, ElementsAre(1, 2, 3, 4, 5, 6)) << "the running pack is processed";
    }
    Job second(packs(5));
    second.config.checkpointing = saves();
    EXPECT_EQ(second.run(), TrainingOutcome::kFinished);
    EXPECT_THAT(second.task.seen, ElementsAre(7, 8, 9, 10));
  }
}

// A task without a state: what it computed before the position is not in its result.
struct Forgetful : Collect {
  nlohmann::json state() const override { return nullptr; }
};

TEST_F(InferencePosition, Without_a_state_of_the_task_is_told_as_are_random_weights) {
  std::string log;
  const DistContext context(
      {.world = one_rank_world(), .log_sink = [&](std::string_view line) { log += std::string(line) + "\n"; }});
  for (const std::int64_t total : {2, 4}) {
    Job job(packs(4));
    job.config.checkpointing = saves();
    job.config.schedule.total_steps = total;
    log.clear();
    Forgetful task;
    Inference<toy::Types>(context, job.config, {.task = task, .model = job.provider, .data = job.provider}).infer();
    EXPECT_THAT(log, HasSubstr(cat("inference: 13 parameters, ", total, " packs on 1 x cpu")));
    EXPECT_THAT(log,
                HasSubstr("the model has random weights: inference.model_stage_factory.source_checkpoint is null"));
    EXPECT_EQ(log.find("from the first 2 packs is not part of its result") != std::string::npos, total == 4) << log;
  }
}

TEST_F(InferencePosition, Of_a_training_job_is_refused) {
  toy::Job training({{toy::samples(0, 2)}, {toy::samples(2, 2)}});
  training.config.checkpointing = {.save_dir = folder(), .period_steps = {EverySteps{1}}};
  training.train();
  Job job(packs(2));
  job.config.checkpointing = saves();
  EXPECT_THAT([&] { job.run(); }, ThrowsMessage<ConfigError>(
                                      AllOf(HasSubstr("inference.checkpointing.save_dir"), HasSubstr("training job"))));
}

TEST(Inference, Has_the_weights_of_a_checkpoint_of_training) {
  const fs::path folder = fs::path(::testing::TempDir()) / "d9d_inference_source";
  fs::remove_all(folder);
  toy::Job training({{toy::samples(0, 2)}, {toy::samples(2, 2)}});
  training.config.checkpointing = {.save_dir = folder, .period_steps = {EverySteps{1}}};
  training.train();
  Job job(packs(1));
  job.config.model_stage_factory.source_checkpoint = folder;
  job.run();
  for (const auto& [name, tensor] : training.provider.model->state_dict()) {
    EXPECT_TRUE(at::equal(job.provider.model->state_dict().at(name), tensor)) << name;
  }
  fs::remove_all(folder);
}

TEST(Inference, Names_the_microbatch_of_an_error) {
  Job job(packs(3));
  job.task.on_processed = [&] { D9D_CHECK(job.task.seen.size() < 4, UsageError, "[test] expected less."); };
  EXPECT_THAT([&] { job.run(); }, ThrowsMessage<UsageError>(AllOf(HasSubstr("in process_outputs"),
                                                                  HasSubstr("microbatch 1 of pack 1 of the data"))));
}

}  // namespace
}  // namespace d9d::inference_test
