// Jobs with replicas: parameters are the same bit for bit, whichever ranks have event handlers, and in the trainer as
// in a loop by hand.
#include <gtest/gtest.h>

#include "d9d/loop/run/trainer.h"
#include "d9d/lr_scheduler/build_lr_scheduler.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::test::replicas_test {
namespace {

constexpr std::int64_t kNumRanks = 2;
constexpr int kNumSteps = 6;
using Values = std::vector<at::Tensor>;

// The samples of a rank, in two microbatches per step.
std::vector<std::vector<toy::Batch>> packs_of(std::int64_t rank, at::ScalarType dtype) {
  std::vector<std::vector<toy::Batch>> packs(kNumSteps);
  for (int step = 0; step < kNumSteps; ++step) {
    for (std::int64_t i = 0; i < 2; ++i) {
      toy::Batch batch = toy::samples(8 * step + 4 * rank + 2 * i, 2);
      for (at::Tensor* const each : {&batch.x, &batch.y, &batch.weights}) *each = each->to(dtype);
      packs[static_cast<std::size_t>(step)].push_back(batch);
    }
  }
  return packs;
}

struct Watcher : toy::Task {
  void register_events(const DistContext&, EventBus& events) override {
    if (watches) events.subscribe(kTrainOptimizerStepPre, [this](const TrainStep&) { ++num_seen; });
  }
  bool watches = false;
  int num_seen = 0;
};

struct JobOfReplicas {
  OptimizerConfig optimizer = AdamWConfig{.lr = 0.05, .weight_decay = 0.1};
  at::ScalarType dtype = at::kBFloat16;
  std::optional<Dtype> grad_dtype = std::nullopt;
  std::vector<bool> watches = {false, false};  // ranks that have a handler of the optimiser's step
};

TrainerConfig config_of(const JobOfReplicas& job) {
  TrainerConfig config;
  config.run.name = "replicas";
  config.schedule.total_steps = kNumSteps;
  config.gc.period_steps = {StepActionMode::kDisable};
  config.checkpointing.period_steps = {StepActionMode::kDisable};
  config.gradient_manager.grad_dtype = job.grad_dtype;
  config.gradient_clipping.max_norm = 0.3;
  return config;
}

ModulePtr<toy::Model> make_model(at::ScalarType dtype) {
  auto model = make_module<toy::Model>();
  model->to(dtype);
  return model;
}

Values weights_in(const Module& module) {
  Values values;
  for (const auto& [name, parameter] : module.named_parameters())
    values.push_back(parameter->stored().detach().clone());
  return values;
}

void on_ranks(const std::function<void(const DistContext&)>& body) {
  run_ranks(RankBackend::kThreads, kNumRanks, [&](World& world) {
    body(DistContext(
        {.mesh = {.data_parallel_replicate = kNumRanks}, .world = borrowed(world), .local_rank = world.rank()}));
  });
}

AutoLRSchedulerProvider falling_learning_rate() {
  return AutoLRSchedulerProvider(PiecewiseConfig{
      .initial_multiplier = 1.0, .phases = {RestPhaseConfig{.target_multiplier = 0.5, .curve = LinearCurveConfig{}}}});
}

// Returns the parameters of each rank after the job.
std::vector<Values> train(const JobOfReplicas& job) {
  std::vector<Values> result(kNumRanks);
  on_ranks([&](const DistContext& context) {
    const auto rank = static_cast<std::size_t>(context.rank());
    Watcher task;
    task.watches = job.watches[rank];
    toy::Provider provider;
    provider.packs = packs_of(context.rank(), job.dtype);
    provider.make_model = [&] { return make_model(job.dtype); };
    AutoOptimizerProvider optimizer(job.optimizer);
    AutoLRSchedulerProvider lr_scheduler = falling_learning_rate();
    Trainer<toy::Types> trainer(
        context, config_of(job),
        {.task = task, .model = provider, .data = provider, .optimizer = optimizer, .lr_scheduler = lr_scheduler});
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
    EXPECT_EQ(task.num_seen, task.watches ? kNumSteps : 0);
    result[rank] = weights_in(trainer.module());
  });
  return result;
}

void expect_same_bits(const Values& actual, const Values& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << "parameter " << i;
}

TEST(Replicas, Stay_the_same_whoever_watches_the_optimiser) {
  const std::vector<OptimizerConfig> optimizers = {AdamWConfig{.lr = 0.05, .weight_decay = 0.1},
                                                   StochasticAdamWConfig{.lr = 0.05, .weight_decay = 0.1}};
  for (const OptimizerConfig& optimizer : optimizers) {
    for (const std::optional<Dtype> grad_dtype : {std::optional<Dtype>(), std::optional(Dtype::kBFloat16)}) {
      JobOfReplicas job{.optimizer = optimizer, .grad_dtype = grad_dtype};
      const std::vector<Values> unseen = train(job);
      expect_same_bits(unseen[1], unseen[0]);
      for (const std::vector<bool>& watches : {std::vector<bool>{true, false}, {true, true}}) {
        job.watches = watches;
        for (const Values& values : train(job)) expect_same_bits(values, unseen[0]);
      }
    }
  }
}

// The training loop of docs/distributed.md, for comparison with the trainer.
Values train_by_hand(const DistContext& context, const JobOfReplicas& job) {
  const TrainerConfig config = config_of(job);
  const auto model = make_model(job.dtype);
  replicate_over_data(context, *model);
  model->materialize(context.device());
  model->reset_parameters(static_cast<std::uint64_t>(config.determinism.base_seed));
  model->set_random_clock(std::make_shared<RandomClock>());
  Optimizer optimizer = AutoOptimizerProvider(job.optimizer).build_optimizer(context, trainable_parameters(*model));
  LearningRateScheduler schedule = falling_learning_rate().build_scheduler(context, kNumSteps);
  GradientManager gradients(context, *model, config.gradient_manager, config.gradient_clipping);
  for (const std::vector<toy::Batch>& pack : packs_of(context.rank(), job.dtype)) {
    for (std::size_t i = 0; i < pack.size(); ++i) {
      gradients.begin_microbatch(/*is_last=*/i + 1 == pack.size());
      const at::Tensor weight = pack[i].weights.sum();
      const at::Tensor errors = (model(pack[i].x, std::monostate()) - pack[i].y).square() * pack[i].weights;
      const at::Tensor loss = errors.sum() / weight.clamp_min(1e-30);
      gradients.add_loss_with_weight(loss, weight);
      (loss * weight).backward();
      gradients.end_microbatch();
    }
    if (gradients.reduce_and_clip({}).is_usable) optimizer.step(optimizer.learning_rate() * schedule.factor());
    schedule.step();
    gradients.reset();
  }
  return weights_in(*model);
}

TEST(Replicas, Train_in_a_loop_of_ones_own_as_in_the_trainer) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const JobOfReplicas job{.dtype = dtype};
    const std::vector<Values> expected = train(job);
    on_ranks([&](const DistContext& context) {
      expect_same_bits(train_by_hand(context, job), expected[static_cast<std::size_t>(context.rank())]);
    });
  }
}

}  // namespace
}  // namespace d9d::test::replicas_test
