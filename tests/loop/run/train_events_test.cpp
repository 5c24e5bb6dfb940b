// Tests which events a job triggers, when, and with which contexts.
#include "d9d/loop/task/train_events.h"

#include <filesystem>
#include <limits>

#include <gmock/gmock.h>

#include "d9d/base/check.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::train_events_test {
namespace {
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using toy::Job;
using toy::samples;

// Logs every event of a job as "<id> [<contents of its context>]", interleaved with the calls of the task.
struct Listener {
  template <class Context, class Describe>
  void listen(EventBus& events, const Event<Context>& event, const Describe& describe) {
    events.subscribe(event, [out = log, event, describe](const Context& context) {
      out->push_back(cat(event.id, describe(context)));
    });
  }
  void subscribe(EventBus& events) {
    listen(events, kTrainConfigStarted, [](const auto& start) { return cat(" rank ", start.dist_context.rank()); });
    listen(events, kTrainDataStreamReady<toy::Batch>,
           [](const auto& data) { return cat(" at ", data.stream.state().dump()); });
    listen(events, kTrainModelStagesReady, [](const auto& stages) {
      stages.modules.at(0).get().check_initialized();
      return cat(" ", stages.modules.size());
    });
    listen(events, kTrainOptimizerReady,
           [](const auto& ready) { return cat(" lr ", ready.optimizer.learning_rate()); });
    listen(events, kTrainLRSchedulerReady,
           [](const auto& ready) { return cat(" factor ", ready.lr_scheduler.factor()); });
    listen(events, kTrainReady, [](const auto& ready) {
      ready.run.write({.name = "from_a_handler", .step = 0}, 1.0);
      return "";
    });
    for (const auto& event : {kTrainStepPre, kTrainForwardBackwardPre, kTrainForwardBackwardPost,
                              kTrainOptimizerStepPre, kTrainOptimizerStepPost}) {
      listen(events, event, [](const TrainStep& step) { return cat(" ", step.schedule.current_step()); });
    }
    listen(events, kTrainStepPost, [](const TrainStep& step) { return cat(" ", step.schedule.current_step()); });
    listen(events, kTrainFinished, [](const TrainFinished&) { return ""; });
    listen(events, kTrainEvaluationPre,
           [](const auto& event) { return cat(" ", event.set, " after ", event.schedule.current_step()); });
    listen(events, kTrainEvaluationPost,
           [](const auto& event) { return cat(" ", event.set, " after ", event.schedule.current_step()); });
    listen(events, kTrainCheckpointSaved, [](const CheckpointEvent& saved) { return cat(" ", saved.step); });
    for (const auto& event : {kTrainSleepPre, kTrainSleepPost, kTrainWakePre, kTrainWakePost}) {
      listen(events, event, [](const TrainSleep& sleep) { return cat(" ", sleep.tags.size()); });
    }
  }
  toy::Log* log;
};

struct CheckpointListener : toy::Task {
  void register_events(const DistContext&, EventBus& events) override {
    for (const auto& event : {kTrainCheckpointLoaded, kTrainCheckpointSaved}) {
      events.subscribe(event, [this, event](const CheckpointEvent& checkpoint) {
        EXPECT_TRUE(std::filesystem::exists(checkpoint.folder / "manifest.json")) << checkpoint.folder;
        log.push_back(cat(event.id, " ", checkpoint.step));
      });
    }
    events.subscribe(kTrainFailed, [this](const TrainFailed& failed) {
      log.push_back(cat("failed: ", failed.error.what()));
      throw StateError("[test] a handler of a failure throws.");
    });
  }
  toy::Log events() const {
    toy::Log events;
    for (const std::string& line : log) {
      if (line.starts_with("train.") || line.starts_with("failed")) events.push_back(line);
    }
    return events;
  }
};

struct ListeningTask : toy::Task {
  MetricMap create_metrics() override { return {}; }  // one that training and an evaluation share is refused
  void register_events(const DistContext&, EventBus& events) override { Listener{&log}.subscribe(events); }
};

// Trains a job with the given task.
TrainingOutcome train(Job& job, toy::Task& task) {
  Trainer<toy::Types> trainer = job.make_trainer(job.context, task);
  return trainer.train();
}

TEST(TrainEvents, Tell_of_checkpoints_that_are_complete) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "d9d_checkpoint_events";
  std::filesystem::remove_all(folder);
  for (const std::int64_t total : {2, 3}) {
    Job job({{samples(0, 1)}, {samples(1, 2)}, {samples(3, 2)}});
    job.config.schedule.total_steps = total;
    job.config.checkpointing.save_dir = folder.string();
    job.config.checkpointing.period_steps = {EverySteps{1}};
    CheckpointListener task;
    train(job, task);
    if (total == 2) {
      EXPECT_THAT(task.events(), ElementsAre("train.checkpoint.saved 1", "train.checkpoint.saved 2"));
    } else {
      EXPECT_THAT(task.events(), ElementsAre("train.checkpoint.loaded 2", "train.checkpoint.saved 3"));
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(TrainEvents, Tell_of_an_exception_that_ends_the_run) {
  Job job({{samples(0, 1)}, {samples(1, 2)}});
  CheckpointListener task;
  task.throws_at_step = 1;
  EXPECT_THAT([&] { train(job, task); }, ThrowsMessage<UsageError>(HasSubstr("the task throws")));
  EXPECT_THAT(task.events(), ElementsAre(HasSubstr("the task throws")));
}

TEST(TrainEvents, Come_in_order_with_their_contexts) {
  Job job({{samples(0, 1)}, {samples(1, 2)}});
  ListeningTask task;
  train(job, task);
  EXPECT_THAT(task.log,
              ElementsAre("train.configuration.start rank 0", "train.configuration.data_stream at 0",
                          "train.configuration.model_stages 1", "train.configuration.optimizer lr 0.5",
                          "train.configuration.lr_scheduler factor 1", "train.ready",  //
                          "train.step.pre 0", "train.forward_backward.pre 0", "build", "loss", "backward", "metrics",
                          "train.forward_backward.post 0", "train.optimizer_step.pre 0", "train.optimizer_step.post 0",
                          "train.step.post 0",  //
                          "train.step.pre 1", "train.forward_backward.pre 1", "build", "loss", "backward", "metrics",
                          "train.forward_backward.post 1", "train.optimizer_step.pre 1", "train.optimizer_step.post 1",
                          "train.step.post 1",  //
                          "finalize", "train.finished"));
  EXPECT_EQ(Job::logged().at(0).at("from_a_handler"), 1.0);
}

// The order of the reference, with what it lacks: evaluations, checkpoints and sleep.
TEST(TrainEvents, Of_a_job_that_evaluates_saves_and_sleeps_come_in_order) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "d9d_order_of_events";
  std::filesystem::remove_all(folder);
  Job job({{samples(0, 1)}, {samples(1, 2)}});
  job.config.checkpointing.save_dir = folder.string();
  job.config.checkpointing.period_steps = {EverySteps{2}};
  job.config.evaluation["unseen"] = {.period_steps = {EverySteps{1}}};
  toy::Provider unseen;
  unseen.packs = {{samples(5, 1)}};
  ListeningTask task;
  Trainer<toy::Types> trainer(job.context, job.config,
                              {.task = task,
                               .model = job.provider,
                               .data = job.provider,
                               .optimizer = *job.optimizer,
                               .lr_scheduler = job.lr_scheduler,
                               .evaluation = {{"unseen", &unseen}}});
  trainer.events().subscribe(kTrainStepPost, [&](const FinishedStep& step) {
    if (step.schedule.current_step() > 0) return;
    trainer.sleep({SleepTag::kTensorStates, SleepTag::kComms});
    trainer.wake();
  });
  task.log.clear();  // the configuration is tested above
  EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
  EXPECT_THAT(task.log,
              ElementsAre("train.ready",  //
                          "train.step.pre 0", "train.forward_backward.pre 0", "build", "loss", "backward", "metrics",
                          "train.forward_backward.post 0", "train.optimizer_step.pre 0", "train.optimizer_step.post 0",
                          "train.step.post 0",                                                                 //
                          "train.sleep.pre 2", "train.sleep.post 2", "train.wake.pre 2", "train.wake.post 2",  //
                          "train.evaluation.pre unseen after 1", "build", "loss", "metrics",
                          "train.evaluation.post unseen after 1",  //
                          "train.step.pre 1", "train.forward_backward.pre 1", "build", "loss", "backward", "metrics",
                          "train.forward_backward.post 1", "train.optimizer_step.pre 1", "train.optimizer_step.post 1",
                          "train.step.post 1",  //
                          "train.evaluation.pre unseen after 2", "build", "loss", "metrics",
                          "train.evaluation.post unseen after 2", "train.checkpoint.saved 2",  //
                          "finalize", "train.finished"));
  std::filesystem::remove_all(folder);
}

// Knows the rank, which a checkpoint cannot give back to each.
struct KnowsItsRank {
  void after_step(const FinishedStep&) {}
  static constexpr auto handlers() { return std::tuple(on(kTrainStepPost, &KnowsItsRank::after_step)); }
  nlohmann::json state() const { return rank; }
  void load_state(const nlohmann::json&) {}
  std::int64_t rank = 0;
};

TEST(TrainEvents, Of_an_object_with_another_state_on_each_rank_are_refused_at_the_save) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "d9d_states_of_ranks";
  std::filesystem::remove_all(folder);
  test::run_ranks(test::RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 2}, .world = test::borrowed(world)});
    Job job({{samples(4 * world.rank(), 1)}, {samples(4 * world.rank() + 1, 2)}});
    job.config.checkpointing.save_dir = folder.string();
    job.config.checkpointing.period_steps = {EverySteps{1}};
    Trainer<toy::Types> trainer = job.make_trainer(context, job.task);
    KnowsItsRank object{.rank = world.rank()};
    trainer.events().attach("knows_its_rank", object);
    EXPECT_THAT([&] { trainer.train(); },
                ThrowsMessage<ConfigError>(HasSubstr("the same state of the handler 'knows_its_rank' on all ranks, got "
                                                     "another on rank 1")));
  });
  std::filesystem::remove_all(folder);
}

TEST(TrainEvents, The_last_of_a_step_has_its_numbers) {
  toy::Batch broken = samples(0, 1);
  broken.y.fill_(std::numeric_limits<double>::quiet_NaN());
  Job job({{samples(0, 1)}, {broken}, {samples(1, 2)}});
  job.config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
  struct : toy::Task {
    void register_events(const DistContext&, EventBus& events) override {
      events.subscribe(kTrainStepPost, [this](const FinishedStep& step) { steps.push_back(step); });
    }
    std::vector<FinishedStep> steps;
  } task;
  train(job, task);
  const auto lines = Job::logged();
  ASSERT_EQ(task.steps.size(), 3U);
  for (const std::size_t i : {0U, 2U}) {
    EXPECT_EQ(task.steps[i].loss, lines[i].at("loss"));
    EXPECT_EQ(task.steps[i].gradient_norm, lines[i].at("grad_norm"));
    EXPECT_EQ(task.steps[i].learning_rate, lines[i].at("lr"));
    EXPECT_EQ(task.steps[i].num_tokens, lines[i].at("num_tokens"));
    EXPECT_EQ(task.steps[i].seconds, lines[i].at("step_seconds"));
    EXPECT_TRUE(task.steps[i].is_updated);
  }
  EXPECT_FALSE(task.steps[1].is_updated);
}

TEST(TrainEvents, Of_the_optimiser_surround_its_step_and_are_left_out_where_it_is) {
  toy::Batch broken = samples(0, 1);
  broken.y.fill_(std::numeric_limits<double>::quiet_NaN());
  Job job({{broken}, {samples(1, 2)}});
  job.config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
  struct Task : toy::Task {
    void register_events(const DistContext&, EventBus& events) override {
      events.subscribe(kTrainOptimizerStepPre, [this](const TrainStep&) { num_steps_before = steps->size(); });
      events.subscribe(kTrainOptimizerStepPost, [this](const TrainStep& step) {
        log.push_back(cat(step.schedule.current_step(), ": ", num_steps_before, " -> ", steps->size()));
      });
    }
    std::shared_ptr<std::vector<toy::Descent::Step>> steps;
    std::size_t num_steps_before = 99;
  } task;
  task.steps = job.descent->steps;
  train(job, task);
  EXPECT_THAT(task.log, ::testing::Contains("1: 0 -> 1"));
  EXPECT_EQ(std::ranges::count_if(task.log, [](const std::string& line) { return line.find("->") != line.npos; }), 1);
}

TEST(TrainEvents, Of_the_task_come_before_those_of_the_model_provider) {
  Job job({{samples(0, 1)}});
  toy::Log log;
  struct Provider : toy::Provider {
    void register_events(const DistContext&, EventBus& events) override {
      events.subscribe(kTrainReady, [this](const TrainReady&) { log->emplace_back("provider"); });
    }
    toy::Log* log;
  } provider;
  struct Task : toy::Task {
    void register_events(const DistContext&, EventBus& events) override {
      events.subscribe(kTrainReady, [this](const TrainReady&) { order->emplace_back("task"); });
    }
    toy::Log* order;
  } task;
  provider.log = task.order = &log;
  provider.packs = job.provider.packs;
  Trainer<toy::Types> trainer(job.context, job.config,
                              {.task = task,
                               .model = provider,
                               .data = provider,
                               .optimizer = *job.optimizer,
                               .lr_scheduler = job.lr_scheduler});
  EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
  EXPECT_THAT(log, ElementsAre("task", "provider"));
}

TEST(TrainEvents, End_the_job_with_what_a_handler_throws) {
  Job job({{samples(0, 1)}, {samples(1, 1)}});
  struct Task : toy::Task {
    void register_events(const DistContext&, EventBus& events) override {
      events.subscribe(kTrainStepPost, [](const TrainStep&) { throw IoError("[test] no room."); });
    }
  } task;
  EXPECT_THAT([&] { train(job, task); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("train.step.post"), HasSubstr("no room"))));
  EXPECT_EQ(job.descent->steps->size(), 1U);
}

// Without a handler AdamW itself divides and clips the gradients as it reads them.
TEST(TrainEvents, Of_the_optimiser_show_finished_gradients_and_change_nothing) {
  const auto weight_after_training = [](bool watches) {
    Job job({{samples(0, 2), samples(2, 3)}, {samples(5, 2)}});
    job.config.gradient_clipping.max_norm = 0.1;
    job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1, .eps = 0.1});
    struct Task : toy::Task {
      void register_events(const DistContext&, EventBus& events) override {
        if (!watches) return;
        events.subscribe(kTrainModelStagesReady, [this](const ModelStagesReady& ready) {
          for (const auto& [name, parameter] : ready.modules.front().get().named_parameters())
            parameters.push_back(parameter->stored());
        });
        events.subscribe(kTrainOptimizerStepPre, [this](const TrainStep&) {
          double sum = 0;
          for (const at::Tensor& parameter : parameters) sum += parameter.grad().square().sum().item<double>();
          norms.push_back(std::sqrt(sum));
        });
      }
      bool watches = false;
      std::vector<at::Tensor> parameters;
      std::vector<double> norms;
    } task;
    task.watches = watches;
    train(job, task);
    if (watches) {
      EXPECT_EQ(task.norms.size(), 2U);
      for (const double norm : task.norms) EXPECT_NEAR(norm, 0.1, 1e-6);
    }
    return job.provider.model->state_dict().begin()->second.clone();
  };
  EXPECT_TRUE(at::allclose(weight_after_training(true), weight_after_training(false), 0, 1e-14));
}

}  // namespace
}  // namespace d9d::train_events_test
