// A job that sleeps before, between and after its steps trains bit for bit as one that does not.
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/loop/task/train_events.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/loop/run/toy_job.h"

namespace d9d::test::sleep_test {
namespace {

using pipeline::PipelineJob;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const SleepTags kBoth = {SleepTag::kTensorStates, SleepTag::kComms};

void expect_that_sleep_changes_nothing(PipelineJob job) {
  const auto train = [&] {
    if (!job.save_dir.empty()) std::filesystem::remove_all(pipeline::folder() / job.save_dir);  // not to continue
    return pipeline::train(job);
  };
  const auto awake = train();
  for (const SleepTags& tags : {kBoth, SleepTags{SleepTag::kTensorStates}, SleepTags{SleepTag::kComms}}) {
    job.sleeps = tags;
    const auto asleep = train();
    pipeline::expect_equal(asleep, awake);
    EXPECT_EQ(asleep.num_gathers, awake.num_gathers);
  }
}

TEST(Sleep, Changes_no_bit_of_one_rank) { expect_that_sleep_changes_nothing({.evaluated = {2}}); }

TEST(Sleep, Changes_no_bit_of_pipelines) {
  expect_that_sleep_changes_nothing(
      {.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}, .ties_embeddings = true});
  expect_that_sleep_changes_nothing({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
                                     .schedule = DualPipeVScheduleConfig{},
                                     .evaluated = {2, 3},
                                     .save_dir = "asleep"});
}

TEST(Sleep, Changes_no_bit_of_shards_and_replicas) {
  expect_that_sleep_changes_nothing({.mesh = {.data_parallel_shard = 2}, .evaluated = {2}});
  expect_that_sleep_changes_nothing({.mesh = {.data_parallel_replicate = 2}});
  expect_that_sleep_changes_nothing({.mesh = {.data_parallel_shard = 2, .expert_parallel = 2}, .has_experts = true});
  expect_that_sleep_changes_nothing({.mesh = {.tensor_parallel = 2}});
}

TEST(Sleep, Changes_no_bit_of_ranks_that_are_processes_of_gloo) {
  expect_that_sleep_changes_nothing({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
                                     .schedule = OneFOneBScheduleConfig{},
                                     .evaluated = {2},
                                     .backend = RankBackend::kGloo});
}

struct ToyJob : toy::Job {
  ToyJob() : toy::Job({{toy::samples(0, 2)}, {toy::samples(2, 2)}}) {}
};

TEST(Sleep, Is_refused_within_a_step_and_leaves_the_job_awake) {
  ToyJob job;
  auto trainer = job.make_trainer();
  int num_refused = 0;
  const auto try_to_sleep = [&](const auto&) {
    EXPECT_THAT([&] { trainer.sleep(); },
                ThrowsMessage<StateError>(
                    AllOf(HasSubstr("expected to sleep between steps, got a call while a step runs (rank 0)"),
                          HasSubstr("train.step.post"))));
    ++num_refused;
  };
  trainer.events().subscribe(kTrainForwardBackwardPre, try_to_sleep);
  trainer.events().subscribe(kTrainForwardBackwardPost, try_to_sleep);
  trainer.events().subscribe(kTrainOptimizerStepPre, try_to_sleep);
  EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
  EXPECT_EQ(num_refused, 6);
  EXPECT_FALSE(trainer.is_sleeping(SleepTag::kTensorStates));
}

TEST(Sleep, Must_end_before_the_job_goes_on) {
  ToyJob job;
  auto trainer = job.make_trainer();
  trainer.sleep(kBoth);
  EXPECT_THAT([&] { trainer.train(); },
              ThrowsMessage<StateError>(HasSubstr("expected a job that is awake to train, got one whose tensor_states "
                                                  "and comms sleep. Call wake() first")));
  EXPECT_THAT([&] { trainer.export_to("never"); }, ThrowsMessage<StateError>(HasSubstr("awake to export its model")));
  trainer.wake({SleepTag::kComms});
  EXPECT_THAT([&] { trainer.train(); }, ThrowsMessage<StateError>(HasSubstr("one whose tensor_states sleep")));
  trainer.wake();
  trainer.events().subscribe(kTrainStepPost, [&](const auto&) { trainer.sleep(); });
  EXPECT_THAT([&] { trainer.train(); },
              ThrowsMessage<StateError>(HasSubstr("awake to go on after the handlers of train.step.post")));
}

TEST(Sleep, Announces_what_begins_to_sleep_and_what_wakes) {
  ToyJob job;
  auto trainer = job.make_trainer();
  std::vector<std::string> log;
  const auto note = [&](const std::string& when) {
    return [&, when](const TrainSleep& event) {
      std::string text = when;
      for (const SleepTag tag : event.tags) text += cat(" ", enum_name(tag));
      text += trainer.is_sleeping(SleepTag::kTensorStates) ? ": asleep" : ": awake";
      log.push_back(text);
    };
  };
  trainer.events().subscribe(kTrainSleepPre, note("sleep.pre"));
  trainer.events().subscribe(kTrainSleepPost, note("sleep.post"));
  trainer.events().subscribe(kTrainWakePre, note("wake.pre"));
  trainer.events().subscribe(kTrainWakePost, note("wake.post"));
  trainer.wake();  // is awake
  trainer.sleep();
  trainer.sleep();  // sleeps already
  trainer.sleep(kBoth);
  trainer.wake();
  EXPECT_THAT(log, ElementsAre("sleep.pre tensor_states: awake", "sleep.post tensor_states: asleep",
                               "sleep.pre comms: asleep", "sleep.post comms: asleep",
                               "wake.pre tensor_states comms: asleep", "wake.post tensor_states comms: awake"));
}

// A part of a program's own, whose first onload fails for want of memory.
struct Part : Offloadable {
  explicit Part(std::string part_name, std::vector<std::string>& calls) : name(std::move(part_name)), log(calls) {}
  void offload(const OffloadContext&) override {
    D9D_CHECK(!fails_to_sleep, StateError, "no host memory");
    log.push_back("offload " + name);
    is_asleep = true;
  }
  void onload(const OnloadContext&) override {
    D9D_CHECK(num_failures-- <= 0, StateError, "no device memory");
    log.push_back("onload " + name);
    is_asleep = false;
  }
  bool is_offloaded() const override { return is_asleep; }

  std::string name;
  std::vector<std::string>& log;
  int num_failures = 0;
  bool fails_to_sleep = false;
  bool is_asleep = false;
};

TEST(Sleep, Takes_parts_of_the_program_along_until_they_leave) {
  ToyJob job;
  auto trainer = job.make_trainer();
  std::vector<std::string> log;
  Part first("first", log), second("second", log), comms("comms", log);
  const auto first_membership = trainer.offloads().add(first);
  {
    const auto second_membership = trainer.offloads().add(second);
    const auto comms_membership = trainer.offloads().add(comms, {SleepTag::kComms});
    trainer.sleep();
    EXPECT_THROW((void)trainer.offloads().add(second), StateError);
    trainer.wake();
  }
  trainer.sleep();
  EXPECT_THAT(log, ElementsAre("offload second", "offload first", "onload first", "onload second", "offload first"));
}

TEST(Sleep, That_fails_on_one_rank_leaves_all_awake_and_a_wake_that_fails_leaves_all_asleep) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 2}, .world = borrowed(world)});
    ToyJob job;
    auto trainer = job.make_trainer(context, job.task);
    std::vector<std::string> log;
    Part part("part", log), other("other", log);
    const auto membership = trainer.offloads().add(part);
    const auto other_membership = trainer.offloads().add(other);
    part.fails_to_sleep = world.rank() == 1;
    EXPECT_THAT([&] { trainer.sleep(kBoth); }, ThrowsMessage<Error>(HasSubstr("no host memory")));
    EXPECT_FALSE(trainer.is_sleeping(SleepTag::kTensorStates));
    EXPECT_FALSE(part.is_offloaded() || other.is_offloaded());
    part.fails_to_sleep = false;
    part.num_failures = world.rank() == 0 ? 1 : 0;
    trainer.sleep(kBoth);
    EXPECT_THAT([&] { trainer.wake(); }, ThrowsMessage<Error>(HasSubstr("no device memory")));
    EXPECT_TRUE(trainer.is_sleeping(SleepTag::kTensorStates) && trainer.is_sleeping(SleepTag::kComms));
    EXPECT_TRUE(part.is_offloaded() && other.is_offloaded());
    EXPECT_FALSE(world.is_connected());
    trainer.wake();
    EXPECT_FALSE(part.is_offloaded() || trainer.is_sleeping(SleepTag::kTensorStates));
  });
}

// A part whose ranks meet, as the links of pipelines do.
struct MeetingPart : Offloadable {
  void offload(const OffloadContext& context) override {
    context.dist_context.wait_world();
    is_asleep = true;
  }
  void onload(const OnloadContext& context) override {
    context.dist_context.wait_world();
    is_asleep = false;
  }
  bool is_offloaded() const override { return is_asleep; }
  bool is_asleep = false;
};

TEST(Sleep, And_wake_that_fail_on_one_rank_call_all_parts_which_may_wait_for_other_ranks) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 2}, .world = borrowed(world)});
    ToyJob job;
    auto trainer = job.make_trainer(context, job.task);
    std::vector<std::string> log;
    Part first("first", log), last("last", log);
    MeetingPart meeting;
    const auto first_membership = trainer.offloads().add(first);
    const auto meeting_membership = trainer.offloads().add(meeting);
    const auto last_membership = trainer.offloads().add(last);
    last.fails_to_sleep = world.rank() == 1;
    EXPECT_THAT([&] { trainer.sleep(); }, ThrowsMessage<Error>(HasSubstr("no host memory")));
    EXPECT_FALSE(first.is_offloaded() || meeting.is_offloaded() || last.is_offloaded());
    last.fails_to_sleep = false;
    trainer.sleep();
    first.num_failures = world.rank() == 1 ? 1 : 0;
    EXPECT_THAT([&] { trainer.wake(); }, ThrowsMessage<Error>(HasSubstr("no device memory")));
    EXPECT_TRUE(first.is_offloaded() && meeting.is_offloaded() && last.is_offloaded());
    trainer.wake();
    EXPECT_FALSE(first.is_offloaded() || meeting.is_offloaded() || last.is_offloaded());
  });
}

TEST(Sleep, Is_refused_while_the_job_goes_to_sleep_or_wakes) {
  ToyJob job;
  auto trainer = job.make_trainer();
  const auto expect_refused = [](const std::function<void()>& call, const char* meanwhile) {
    EXPECT_THAT(call, ThrowsMessage<StateError>(HasSubstr(cat("got a call while the job ", meanwhile))));
  };
  int num_refused = 0;
  trainer.events().subscribe(kTrainSleepPre, [&](const auto&) {
    expect_refused([&] { trainer.sleep(); }, "goes to sleep");
    ++num_refused;
  });
  trainer.events().subscribe(kTrainWakePre, [&](const auto&) {
    expect_refused([&] { trainer.wake(); }, "wakes");
    ++num_refused;
  });
  trainer.sleep(kBoth);
  trainer.wake();
  EXPECT_EQ(num_refused, 2);
  trainer.events().subscribe(kTrainSleepPost, [&](const auto&) { trainer.wake(); });
  trainer.sleep(kBoth);
  EXPECT_FALSE(trainer.is_sleeping(SleepTag::kComms));
}

// Has no metrics.
struct PlainTask : toy::Task {
  MetricMap create_metrics() override { return {}; }
  void update_metrics(const State& /*state*/, const MetricMap& /*metrics*/) override {}
};

TEST(Sleep, After_an_evaluation_must_end_before_a_checkpoint_is_saved) {
  ToyJob job;
  const auto folder = pipeline::folder();
  std::filesystem::remove_all(folder);
  job.config.checkpointing = {.save_dir = folder, .period_steps = {EverySteps{2}}};
  job.config.evaluation["validation"] = {.period_steps = {EverySteps{2}}};
  PlainTask task;
  toy::Provider validation;
  validation.packs = {{toy::samples(4, 2)}};
  Trainer<toy::Types> trainer(job.context, job.config,
                              {.task = task,
                               .model = job.provider,
                               .data = job.provider,
                               .optimizer = *job.optimizer,
                               .lr_scheduler = job.lr_scheduler,
                               .evaluation = {{"validation", &validation}}});
  trainer.events().subscribe(kTrainEvaluationPost, [&](const auto&) { trainer.sleep(); });
  EXPECT_THAT([&] { trainer.train(); }, ThrowsMessage<StateError>(HasSubstr("that is awake to save a checkpoint")));
}

TEST(Sleep, Of_communicators_outlives_its_job_until_they_reconnect) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 2}, .world = borrowed(world)});
    const auto train = [&] {
      ToyJob job;
      job.config.refuse_equal_data = false;
      job.config.logging.tracker = NullTrackerConfig{};
      auto trainer = job.make_trainer(context, job.task);
      EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
      trainer.sleep(kBoth);
    };
    train();
    EXPECT_THAT(train, ThrowsMessage<StateError>(HasSubstr("World::reconnect() if that job is gone")));
    world.reconnect();
    train();
  });
}

TEST(Sleep, After_a_step_that_failed_leaves_a_job_that_trains) {
  const PipelineJob job{.mesh = {.data_parallel_shard = 2}};
  std::filesystem::create_directories(pipeline::folder());
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context({.mesh = job.mesh, .world = borrowed(world)});
    pipeline::Task task(context, job);
    pipeline::Provider provider(job);
    provider.note = [](const auto&, const auto&) {};
    AutoOptimizerProvider optimizer(job.optimizer);
    AutoLRSchedulerProvider lr_scheduler(
        PiecewiseConfig{.initial_multiplier = 1.0,
                        .phases = {RestPhaseConfig{.target_multiplier = 1.0, .curve = LinearCurveConfig{}}}});
    TrainerConfig config = pipeline::config_of(job);
    config.logging.tracker = NullTrackerConfig{};
    Trainer<LanguageModelTypes> trainer(
        context, config,
        {.task = task, .model = provider, .data = provider, .optimizer = optimizer, .lr_scheduler = lr_scheduler});
    Subscription fails = trainer.events().subscribe(kTrainForwardBackwardPost, [](const TrainStep& step) {
      D9D_CHECK(step.schedule.current_step() != 1, StateError, "[test] a step that fails.");
    });
    EXPECT_THAT([&] { trainer.train(); }, ThrowsMessage<StateError>(HasSubstr("a step that fails")));
    fails.end();
    trainer.sleep(kBoth);
    trainer.wake();
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
  });
}

TEST(Sleep, Around_another_job_does_not_change_the_timeout_of_a_step) {
  ToyJob job, other;
  job.config.timeout.step_timeout = 17;
  auto trainer = job.make_trainer();
  std::vector<std::int64_t> seconds;
  trainer.events().subscribe(kTrainForwardBackwardPre, [&](const auto&) {
    seconds.push_back(std::chrono::duration_cast<std::chrono::seconds>(job.context.world()->timeout()).count());
  });
  trainer.events().subscribe(kTrainStepPost, [&](const auto&) {
    trainer.sleep();
    { auto another = other.make_trainer(job.context, other.task); }
    trainer.wake();
  });
  trainer.train();
  EXPECT_THAT(seconds, ElementsAre(job.config.timeout.init_timeout, 17));
}

TEST(Sleep, With_other_tags_on_another_rank_is_refused_on_both) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 2}, .world = borrowed(world)});
    ToyJob job;
    auto trainer = job.make_trainer(context, job.task);
    EXPECT_THAT([&] { trainer.sleep(world.rank() == 0 ? kBoth : default_sleep_tags()); },
                ThrowsMessage<StateError>(HasSubstr(
                    "the same tags on all ranks, got {tensor_states} on rank 1 and {tensor_states, comms} on rank 0")));
    EXPECT_FALSE(trainer.is_sleeping(SleepTag::kTensorStates));
  });
}

TEST(Sleep, Of_communicators_comes_last) {
  ToyJob job;
  auto trainer = job.make_trainer();
  trainer.sleep({SleepTag::kComms});
  EXPECT_THAT([&] { trainer.sleep(); },
              ThrowsMessage<StateError>(HasSubstr("expected to put {tensor_states} to sleep before comms")));
}

}  // namespace
}  // namespace d9d::test::sleep_test
