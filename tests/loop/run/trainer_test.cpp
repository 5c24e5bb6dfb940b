#include "d9d/loop/run/trainer.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include "d9d/base/check.h"
#include "d9d/loop/task/train_events.h"
#include "d9d/lr_scheduler/build_lr_scheduler.h"

#include "tests/loop/run/toy_values.h"
#include "tests/support/memory_peak.h"

namespace d9d::trainer_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;
using toy::all_equal;
using toy::Job;
using toy::poisoned;
using toy::samples;
using toy::values_of;

// The model as plain tensors in the order of its parameters.
std::vector<at::Tensor> plain_leaves(at::ScalarType dtype = at::kDouble) {
  const auto model = make_module<toy::Model>();
  model->materialize(at::kCPU);
  model->reset_parameters(0);
  model->to(dtype);
  std::vector<at::Tensor> leaves;
  for (const auto& [name, parameter] : model->named_parameters()) {
    leaves.push_back(parameter->local().detach().clone().set_requires_grad(true));
  }
  return leaves;
}

at::Tensor plain_forward(const std::vector<at::Tensor>& leaves, const at::Tensor& x) {
  return at::linear(at::tanh(at::linear(x, leaves[0], leaves[1])), leaves[2], leaves[3]);
}

// The weighted mean over all samples.
at::Tensor plain_loss(const std::vector<at::Tensor>& leaves, const toy::Batch& batch) {
  return ((plain_forward(leaves, batch.x) - batch.y).square() * batch.weights).sum() / batch.weights.sum();
}

TEST(Trainer, Goes_through_a_pack_depth_first) {
  Job job({{samples(0, 1), samples(1, 2)}});
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
  EXPECT_THAT(job.task.log,
              ElementsAre("build", "build", "loss", "backward", "metrics", "loss", "backward", "metrics", "finalize"));
}

TEST(Trainer, Packs_may_have_different_sizes) {
  Job job({{samples(0, 2)}, {samples(0, 1), samples(1, 1), samples(2, 4)}, {samples(3, 3), samples(1, 2)}});
  job.config.logging.period_steps = {EverySteps{2}};
  job.train();
  EXPECT_EQ(std::ranges::count(job.task.log, "loss"), 6);
  const auto lines = Job::logged();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1]["num_tokens"], 6);
  EXPECT_FALSE(lines[0].contains("num_samples"));
  EXPECT_EQ(lines[1]["num_samples"], 8);  // accumulated since the start
  EXPECT_EQ(lines[2]["num_samples"], 5);  // accumulated since the second step; logged at the last one
}

// Records after each step how many bytes the tensors of this thread take.
struct WeighingTask : toy::Task {
  explicit WeighingTask(const test::MemoryPeak& peak) : memory(peak) {}
  void register_events(const DistContext&, EventBus& events) override {
    events.subscribe(kTrainStepPost, [this](const FinishedStep&) { live_bytes.push_back(memory.live_bytes()); });
  }
  void update_metrics(const toy::State& state, const MetricMap& metrics) override {
    toy::Task::update_metrics(state, metrics);
    std::erase_if(tokens, [](const auto& token) { return token.expired(); });
    most_states = std::max(most_states, std::ssize(tokens));
  }
  const test::MemoryPeak& memory;
  std::vector<std::int64_t> live_bytes;
  std::int64_t most_states = 0;
};

TEST(Trainer, Keeps_no_tensor_over_a_thousand_steps) {
  constexpr std::size_t kNumSteps = 1000, kFirst = 5;  // the first steps allocate what later ones reuse
  Job job(std::vector<std::vector<toy::Batch>>(kNumSteps, {samples(0, 2), samples(2, 2), samples(4, 2)}));
  job.config.logging.tracker = NullTrackerConfig{};
  job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 1e-3});
  const test::MemoryPeak memory;
  WeighingTask task(memory);
  EXPECT_EQ(job.make_trainer(job.context, task).train(), TrainingOutcome::kFinished);
  ASSERT_EQ(task.live_bytes.size(), kNumSteps);
  for (std::size_t step = kFirst; step < kNumSteps; ++step) {
    ASSERT_EQ(task.live_bytes[step], task.live_bytes[kFirst]) << "after step " << step;
  }
  EXPECT_EQ(task.most_states, 3);  // the microbatches of one step
}

TEST(Trainer, Logs_every_step_under_the_documented_names) {
  Job job({{samples(0, 2)}, {samples(2, 2)}});
  job.train();
  const auto lines = Job::logged();
  ASSERT_EQ(lines.size(), 2U);
  for (const auto& line : lines) {
    for (const char* name : {"loss", "grad_norm", "lr", "num_tokens", "step_seconds", "data_seconds",
                             "tokens_per_second", "host_bytes", "skipped_steps", "num_samples"}) {
      EXPECT_TRUE(line.contains(name)) << name << " in " << line;
    }
  }
}

TEST(Trainer, Loss_and_gradients_are_weighted_means_however_a_step_is_split) {
  const auto leaves = plain_leaves();
  const at::Tensor expected = plain_loss(leaves, samples(0, 6));
  expected.backward();
  for (const std::vector<std::int64_t>& sizes : std::vector<std::vector<std::int64_t>>{{6}, {2, 4}, {1, 2, 3}}) {
    std::vector<toy::Batch> pack;
    std::int64_t first = 0;
    for (const std::int64_t size : sizes) {
      pack.push_back(samples(first, size));
      first += size;
    }
    Job job({pack});
    job.train();
    EXPECT_NEAR(Job::logged().at(0)["loss"].get<double>(), expected.item<double>(), 1e-14);
    const auto& gradients = job.descent->steps->at(0).gradients;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(at::allclose(gradients[i], leaves[i].grad(), 0, 1e-14)) << i;
    }
  }
}

TEST(Trainer, A_step_of_total_weight_zero_changes_nothing_and_is_said) {
  toy::Batch weightless = samples(0, 2);
  weightless.weights.zero_();
  Job job({{weightless}});
  job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1, .weight_decay = 0.5});
  auto trainer = job.make_trainer();
  const auto before = values_of(trainer.module());
  ::testing::internal::CaptureStderr();
  EXPECT_THROW((void)trainer.train(), StateError);  // no step changed anything
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("step 0 changed nothing: its total loss weight is 0"));
  EXPECT_TRUE(all_equal(before, values_of(trainer.module())));
}

TEST(Trainer, A_nan_stops_the_run_says_how_to_find_it_and_leaves_values_alone) {
  Job job({{poisoned()}});
  auto trainer = job.make_trainer();
  const auto before = values_of(trainer.module());
  EXPECT_THAT([&] { (void)trainer.train(); },
              ThrowsMessage<StateError>(
                  AllOf(HasSubstr("in step 0, got loss nan, gradient norm nan. trainer.detect_non_finite = true names"),
                        HasSubstr("trainer.gradient_clipping.on_non_finite"), Not(HasSubstr("lower learning rate")))));
  EXPECT_TRUE(all_equal(before, values_of(trainer.module())));
}

TEST(Trainer, A_nan_of_a_later_step_may_come_from_the_learning_rate) {
  Job job({{samples(0, 2)}, {poisoned()}});
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<StateError>(AllOf(HasSubstr("in step 1, got loss nan"),
                                                                    HasSubstr("A lower learning rate may help"))));
}

TEST(Trainer, A_nan_of_a_parameter_names_it) {
  Job job({{samples(0, 2)}});
  auto trainer = job.make_trainer();
  {
    const at::NoGradGuard no_grad;
    trainer.module().named_parameters().back().second->local().view(-1)[0].fill_(std::nan(""));
  }
  const std::string name = trainer.module().named_parameters().back().first;
  EXPECT_THAT([&] { (void)trainer.train(); },
              ThrowsMessage<StateError>(HasSubstr(name + " itself has such values on rank 0")));
}

// A gradient overflows, as in float16, although the loss is finite.
TEST(Trainer, An_infinite_gradient_names_the_parameter_nearest_to_the_loss) {
  Job job({{samples(0, 2)}});
  auto trainer = job.make_trainer();
  const auto parameters = trainer.module().named_parameters();
  ASSERT_GE(parameters.size(), 2U);
  const auto& [name, parameter] = parameters.at(parameters.size() - 2);
  parameter->local().register_hook([](const at::Tensor& gradient) { return at::full_like(gradient, 1 / 0.0); });
  EXPECT_THAT([&] { (void)trainer.train(); },
              ThrowsMessage<StateError>(
                  AllOf(HasSubstr("gradient norm inf"), HasSubstr("nearest to the loss in the gradient of " + name))));
}

TEST(Trainer, A_nan_is_skipped_if_asked_and_training_goes_on) {
  Job job({{poisoned()}, {samples(0, 2)}});
  job.config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
  ASSERT_EQ(job.descent->steps->size(), 1U);
  auto leaves = plain_leaves();
  plain_loss(leaves, samples(0, 2)).backward();
  EXPECT_TRUE(at::allclose(job.descent->steps->at(0).gradients[0], leaves[0].grad(), 0, 1e-14));
}

// The optimiser gets its gradients before the host knows that they are not finite.
TEST(Trainer, A_nan_leaves_an_optimiser_that_scales_gradients_as_it_was) {
  const AdamWConfig config{.lr = 0.1, .weight_decay = 0.5};
  const auto values_after = [&](const std::vector<std::vector<toy::Batch>>& packs) {
    Job job(packs);
    job.config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
    job.optimizer = std::make_shared<AutoOptimizerProvider>(config);
    job.lr_scheduler = AutoLRSchedulerProvider(PiecewiseConfig{
        .initial_multiplier = 1, .phases = {RestPhaseConfig{.target_multiplier = 1, .curve = LinearCurveConfig{}}}});
    auto trainer = job.make_trainer();
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
    return values_of(trainer.module());
  };
  const std::vector<toy::Batch> first = {samples(0, 2)}, second = {samples(2, 2)};
  EXPECT_TRUE(all_equal(values_after({first, {poisoned()}, second}), values_after({first, second})));
}

TEST(Trainer, A_nan_that_stops_the_run_leaves_an_optimiser_that_scales_gradients_as_it_was) {
  Job job({{poisoned()}});
  job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1, .weight_decay = 0.5});
  auto trainer = job.make_trainer();
  const auto before = values_of(trainer.module());
  EXPECT_THAT([&] { (void)trainer.train(); }, ThrowsMessage<StateError>(HasSubstr("loss nan")));
  EXPECT_TRUE(all_equal(before, values_of(trainer.module())));
}

TEST(Trainer, Clips_as_torch_does) {
  Job job({{samples(0, 3), samples(3, 3)}});
  job.config.gradient_clipping.max_norm = 0.05;
  job.train();
  const auto leaves = plain_leaves();
  plain_loss(leaves, samples(0, 6)).backward();
  const double norm = torch::nn::utils::clip_grad_norm_(leaves, 0.05);
  ASSERT_GT(norm, 0.05);
  EXPECT_NEAR(Job::logged().at(0)["grad_norm"].get<double>(), norm, 1e-14);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(at::allclose(job.descent->steps->at(0).gradients[i], leaves[i].grad(), 0, 1e-14)) << i;
  }
}

TEST(Trainer, The_learning_rate_follows_its_schedule) {
  const PiecewiseConfig schedule{.initial_multiplier = 0.1,
                                 .phases = {StepsPhaseConfig{.steps = 2, .target_multiplier = 1.0, .curve = {}},
                                            RestPhaseConfig{.target_multiplier = 0.0, .curve = CosineCurveConfig{}}}};
  Job job(std::vector<std::vector<toy::Batch>>(5, {samples(0, 2)}));
  job.lr_scheduler = AutoLRSchedulerProvider(schedule);
  job.train();
  const PiecewiseSchedule expected = build_piecewise_schedule(schedule, 5);
  for (std::size_t i = 0; i < 5; ++i) {
    const double learning_rate = 0.5 * expected.factor(static_cast<std::int64_t>(i));
    EXPECT_DOUBLE_EQ(job.descent->steps->at(i).learning_rate, learning_rate) << i;
    EXPECT_DOUBLE_EQ(Job::logged().at(i)["lr"].get<double>(), learning_rate) << i;
  }
}

TEST(Trainer, Random_layers_see_the_step_and_the_microbatch) {
  Job job({{samples(0, 1), samples(1, 1)}, {samples(2, 1)}});
  job.config.determinism.base_seed = 7;
  job.train();
  EXPECT_THAT(job.provider.model->clocks, ElementsAre(Pair(0, 0), Pair(0, 1), Pair(1, 0)));
}

TEST(Trainer, Random_layers_see_the_numbers_that_the_stream_gives_its_microbatches) {
  struct Numbered : toy::Provider::Stream {
    [[nodiscard]] std::vector<std::int64_t> microbatch_numbers() const { return numbers.at(position - 1); }
    std::vector<std::vector<std::int64_t>> numbers;
  };
  struct Provider : toy::Provider {
    std::unique_ptr<PackStream<toy::Batch>> build_pack_stream(const DistContext&,
                                                              std::optional<std::int64_t>) override {
      return as_pack_stream<toy::Batch>(Numbered{{.packs = packs, .known_total = {}}, {{6, 2}, {7}}});
    }
  };
  Job job({{samples(0, 1), samples(1, 1)}, {samples(2, 1)}});
  Provider data;
  data.packs = job.provider.packs;
  Trainer<toy::Types>(job.context, job.config,
                      {.task = job.task,
                       .model = job.provider,
                       .data = data,
                       .optimizer = *job.optimizer,
                       .lr_scheduler = job.lr_scheduler})
      .train();
  EXPECT_THAT(job.provider.model->clocks, ElementsAre(Pair(0, 6), Pair(0, 2), Pair(1, 7)));
}

TEST(Trainer, The_model_starts_from_the_configured_seed) {
  Job job({{samples(0, 1)}});
  job.config.determinism.base_seed = 7;
  const auto trainer = job.make_trainer();
  const auto model = make_module<toy::Model>();
  model->materialize(at::kCPU);
  model->reset_parameters(7);
  EXPECT_TRUE(all_equal(values_of(trainer.module()), values_of(*model)));
}

TEST(Trainer, Keeps_the_states_of_one_step_in_a_thousand) {
  Job job(std::vector<std::vector<toy::Batch>>(1000, {samples(0, 2), samples(2, 2)}));
  struct Task : toy::Task {
    ForwardInputs<toy::Types> build_forward_inputs(const toy::Batch& batch) override {
      std::erase_if(tokens, [](const auto& token) { return token.expired(); });
      most = std::max(most, tokens.size());
      return toy::Task::build_forward_inputs(batch);
    }
    std::size_t most = 0;  // when another one is built
  } task;
  EXPECT_EQ(job.make_trainer(job.context, task).train(), TrainingOutcome::kFinished);
  EXPECT_EQ(task.most, 1U);
  for (const auto& token : task.tokens) EXPECT_TRUE(token.expired());
}

TEST(Trainer, An_exception_of_the_task_clears_states_and_keeps_the_log_of_finished_steps) {
  Job job(std::vector<std::vector<toy::Batch>>(4, {samples(0, 2), samples(2, 2)}));
  job.task.throws_at_step = 2;
  auto trainer = job.make_trainer();
  EXPECT_THAT([&] { (void)trainer.train(); }, ThrowsMessage<UsageError>(HasSubstr("the task throws")));
  for (const auto& token : job.task.tokens) EXPECT_TRUE(token.expired());
  const auto lines = Job::logged();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1]["step"], 1);
  EXPECT_TRUE(lines[1].contains("num_samples"));
  EXPECT_EQ(std::ranges::count(job.task.log, "finalize"), 0);
}

TEST(Trainer, Refuses_a_model_that_has_storage_already) {
  Job job({{samples(0, 1)}});
  job.provider.make_model = [] {
    auto model = make_module<toy::Model>();
    model->second->materialize(at::kCPU);
    return model;
  };
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<StateError>(HasSubstr("got values in second.weight")));
}

TEST(Trainer, Refuses_a_parameter_that_was_left_without_a_value) {
  class Forgetful : public toy::Model {
    void after_reset(std::uint64_t, const std::string&) override { first->bias->materialize(at::kCPU); }
  };
  Job job({{samples(0, 1)}});
  job.provider.make_model = [] { return make_module<Forgetful>(); };
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<StateError>(HasSubstr("got none in {first.bias}")));
}

TEST(Trainer, Data_that_ends_early_is_an_error_with_both_numbers) {
  Job job({{samples(0, 1)}, {samples(1, 1)}});
  job.config.schedule.total_steps = 5;
  EXPECT_THAT([&] { job.train(); },
              ThrowsMessage<StateError>(HasSubstr("expected data for 5 steps, got an end after 2")));
}

TEST(Trainer, More_steps_than_the_data_has_fail_before_a_model_is_built) {
  Job job({{samples(0, 1)}, {samples(1, 1)}});
  job.provider.known_total = 2;
  job.config.schedule.total_steps = 5;
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<ConfigError>(AllOf(HasSubstr("2 steps"), HasSubstr("got 5"))));
  EXPECT_EQ(job.provider.num_models, 0);
}

TEST(Trainer, What_is_not_built_is_refused_before_anything_else) {
  Job job({{samples(0, 1)}});
  job.config.pipelining.schedule = InferenceScheduleConfig{};
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<ConfigError>(HasSubstr("trainer.pipelining.schedule")));
  EXPECT_EQ(job.provider.num_models, 0);
}

// Trains fifty steps of two unequal microbatches with clipping and AdamW, and compares with a plain LibTorch loop.
void expect_curve_of_plain_loop(at::ScalarType dtype, double tolerance) {
  constexpr std::int64_t kNumSteps = 50;
  const auto cast = [&](const toy::Batch& batch) {
    return tree_map([&](const at::Tensor& leaf) { return leaf.to(dtype); }, batch);
  };
  std::vector<std::vector<toy::Batch>> packs;
  for (std::int64_t step = 0; step < kNumSteps; ++step) {
    packs.push_back({cast(samples(6 * step, 4)), cast(samples(6 * step + 4, 2))});
  }
  Job job(packs);
  job.config.gradient_clipping.max_norm = 0.5;
  job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.02});
  job.provider.make_model = [dtype] {
    auto model = make_module<toy::Model>();
    model->to(dtype);
    return model;
  };
  job.train();
  const auto lines = Job::logged();

  const auto leaves = plain_leaves(dtype);
  torch::optim::AdamW optimizer(leaves, torch::optim::AdamWOptions(0.02).weight_decay(0.01));
  for (std::int64_t step = 0; step < kNumSteps; ++step) {
    const double factor = 1.0 - 0.5 * static_cast<double>(step) / kNumSteps;
    static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr(0.02 * factor);
    optimizer.zero_grad();
    const at::Tensor loss = plain_loss(leaves, cast(samples(6 * step, 6)));
    loss.backward();
    torch::nn::utils::clip_grad_norm_(leaves, 0.5);
    optimizer.step();
    ASSERT_NEAR(lines.at(static_cast<std::size_t>(step))["loss"].get<double>(), loss.item<double>(), tolerance) << step;
  }
  EXPECT_LT(lines.back()["loss"].get<double>(), 0.5 * lines.front()["loss"].get<double>());
}

TEST(Trainer, Names_the_first_module_that_is_not_finite) {
  toy::Batch broken = samples(0, 2);
  broken.x[1][0] = std::numeric_limits<double>::quiet_NaN();
  Job job({{samples(0, 2)}, {samples(2, 2), broken}});
  job.config.detect_non_finite = true;
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<StateError>(AllOf(
                                        HasSubstr("NaN or infinity in the output of first, whose inputs have such"),
                                        HasSubstr("microbatch 1 of step 1"))));
}

TEST(Trainer, Trains_in_bfloat16_by_stochastic_adamw_and_repeats_itself) {
  const auto losses = [] {
    std::vector<std::vector<toy::Batch>> packs;
    for (std::int64_t step = 0; step < 50; ++step) {
      packs.push_back({tree_map([](const at::Tensor& leaf) { return leaf.to(at::kBFloat16); }, samples(4 * step, 4))});
    }
    Job job(packs);
    job.optimizer =
        std::make_shared<AutoOptimizerProvider>(StochasticAdamWConfig{.lr = 0.02, .state_dtype = Dtype::kBFloat16});
    job.provider.make_model = [] {
      auto model = make_module<toy::Model>();
      model->to(at::kBFloat16);
      return model;
    };
    job.train();
    std::vector<double> result;
    for (const auto& line : Job::logged()) result.push_back(line["loss"].get<double>());
    return result;
  };
  const std::vector<double> first = losses();
  EXPECT_LT(first.back(), 0.5 * first.front());
  EXPECT_EQ(losses(), first);
}

TEST(AutoOptimizerProvider, Hands_the_seed_of_the_job_to_stochastic_adamw) {
  const DistContext context({.world = one_rank_world()});
  const auto model = make_module<toy::Model>();
  model->to(at::kBFloat16);
  model->materialize(at::kCPU);
  model->reset_parameters(/*base_seed=*/7);
  const Optimizer optimizer =
      AutoOptimizerProvider(StochasticAdamWConfig{}).build_optimizer(context, trainable_parameters(*model));
  EXPECT_EQ(optimizer.state_dict().at("rounding_seed").local.item<std::int64_t>(), 7);
}

TEST(Trainer, That_goes_on_after_a_failed_step_adds_none_of_its_gradients) {
  Job plain({{samples(0, 2)}, {samples(4, 2)}, {samples(6, 2)}});
  plain.train();
  Job job({{samples(0, 2)}, {samples(2, 2)}, {samples(4, 2)}, {samples(6, 2)}});
  job.config.schedule.total_steps = 3;
  auto trainer = job.make_trainer();
  Subscription fails = trainer.events().subscribe(kTrainForwardBackwardPost, [](const TrainStep& step) {
    D9D_CHECK(step.schedule.current_step() != 1, StateError, "[test] a step that fails.");
  });
  EXPECT_THROW(trainer.train(), StateError);
  fails.end();
  EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
  ASSERT_EQ(job.descent->steps->size(), 3U);
  for (std::size_t step = 0; step < 3; ++step) {
    EXPECT_TRUE(all_equal((*job.descent->steps)[step].gradients, (*plain.descent->steps)[step].gradients)) << step;
  }
}

TEST(Trainer, Follows_a_plain_loop_in_double) { expect_curve_of_plain_loop(at::kDouble, 1e-12); }
TEST(Trainer, Follows_a_plain_loop_in_float) { expect_curve_of_plain_loop(at::kFloat, 1e-6); }

}  // namespace
}  // namespace d9d::trainer_test
