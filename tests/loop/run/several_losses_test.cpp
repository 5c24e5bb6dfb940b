// Jobs whose losses are means over different things: every division of the samples of a step gives the same numbers as
// the undivided step.
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "d9d/loop/run/trainer.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerances.h"

namespace d9d::test::several_losses_test {
namespace {

constexpr std::int64_t kSamples = 8;  // of a step
constexpr int kNumSteps = 3;

// "weighted" is a weighted mean over the samples. "large" is a mean over the outputs of samples whose weight is above
// 5; a microbatch may have no such sample.
struct TwoLosses : toy::Task {
  static at::Tensor large_of(const toy::Batch& batch) { return batch.weights.gt(5).to(at::kDouble); }

  ForwardInputs<toy::Types> build_forward_inputs(const toy::Batch& batch) override {
    ForwardInputs<toy::Types> inputs = toy::Task::build_forward_inputs(batch);
    inputs.loss_weights = {{"weighted", batch.weights.sum()}, {"large", large_of(batch).sum()}};
    return inputs;
  }
  LossResult compute_loss(const Output& output, State& state, const JobSchedule&) override {
    state.output = output;
    const auto& [x, y, weights] = state.batch;
    const at::Tensor large = large_of(state.batch);
    return {.losses = {{"weighted", ((output - y).square() * weights).sum() / weights.sum()},
                       {"large", 0.3 * (output.abs() * large).sum() / large.sum().clamp_min(1)}}};
  }
};

struct Result {
  std::vector<at::Tensor> parameters;
  std::vector<std::map<std::string, double>> logged;
};

ModulePtr<toy::Model> ready_model() {
  auto model = make_module<toy::Model>();
  model->materialize(at::kCPU);
  model->reset_parameters(0);
  return model;
}

// The reference without the loop of the library: gradient descent on the losses of all samples of a step together.
Result train_whole() {
  const auto model = ready_model();
  Result result;
  for (int step = 0; step < kNumSteps; ++step) {
    const auto [x, y, weights] = toy::samples(kSamples * step, kSamples);
    const at::Tensor output = model(x, std::monostate());
    const at::Tensor large = weights.gt(5).to(at::kDouble);
    const at::Tensor first = ((output - y).square() * weights).sum() / weights.sum();
    const at::Tensor second = 0.3 * (output.abs() * large).sum() / large.sum();
    (first + second).backward();
    result.logged.push_back({{"loss", (first + second).item<double>()},
                             {"loss/weighted", first.item<double>()},
                             {"loss/large", second.item<double>()}});
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : model->named_parameters()) {
      parameter->local().sub_(parameter->local().grad(), 0.5);
      parameter->local().mutable_grad() = at::Tensor();
    }
  }
  for (const auto& [name, parameter] : model->named_parameters()) result.parameters.push_back(parameter->local());
  return result;
}

// Samples are dealt to ranks in turn, as with the order "sequential".
Result train(std::int64_t num_ranks, std::int64_t microbatch_size) {
  Result result;
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    toy::Job job{std::vector<std::vector<toy::Batch>>(kNumSteps)};
    const DistContext context({.mesh = {.data_parallel_replicate = num_ranks}, .world = borrowed(world)});
    for (int step = 0; step < kNumSteps; ++step) {
      const toy::Batch all = toy::samples(kSamples * step, kSamples);
      for (std::int64_t first = world.rank(); first < kSamples; first += num_ranks * microbatch_size) {
        const auto part = [&](const at::Tensor& whole) {
          return whole.slice(0, first, std::min(kSamples, first + num_ranks * microbatch_size), num_ranks);
        };
        job.provider.packs[static_cast<std::size_t>(step)].push_back(
            {.x = part(all.x), .y = part(all.y), .weights = part(all.weights)});
      }
    }
    job.config.gradient_clipping.max_norm = std::nullopt;
    TwoLosses task;
    AutoLRSchedulerProvider lr_scheduler{
        PiecewiseConfig{.initial_multiplier = 1.0,
                        .phases = {RestPhaseConfig{.target_multiplier = 1.0, .curve = LinearCurveConfig{}}}}};
    Trainer<toy::Types> trainer(context, job.config,
                                {.task = task,
                                 .model = job.provider,
                                 .data = job.provider,
                                 .optimizer = *job.optimizer,
                                 .lr_scheduler = lr_scheduler});
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
    if (!context.is_main_process()) return;
    for (const auto& [name, parameter] : trainer.module().named_parameters()) {
      result.parameters.push_back(parameter->local());
    }
  });
  for (const nlohmann::json& line : toy::Job::logged()) {
    result.logged.push_back({{"loss", line.at("loss")},
                             {"loss/weighted", line.at("loss/weighted")},
                             {"loss/large", line.at("loss/large")}});
  }
  return result;
}

TEST(SeveralLosses, Are_means_over_the_whole_step_however_it_is_divided) {
  const double tolerance = test::tolerance("fp64").value;
  const Result whole = train_whole();
  for (const std::int64_t num_ranks : {1, 2, 4}) {
    for (const std::int64_t microbatch_size : {1, 2}) {
      const Result result = train(num_ranks, microbatch_size);
      ASSERT_EQ(result.logged.size(), whole.logged.size());
      for (std::size_t step = 0; step < whole.logged.size(); ++step) {
        for (const auto& [name, value] : whole.logged[step]) {
          EXPECT_NEAR(result.logged[step].at(name), value, tolerance) << name << " of step " << step;
        }
      }
      for (std::size_t i = 0; i < whole.parameters.size(); ++i) {
        EXPECT_TRUE(at::allclose(result.parameters[i], whole.parameters[i], 0, tolerance))
            << num_ranks << " ranks, microbatches of " << microbatch_size;
      }
    }
  }
}

TEST(SeveralLosses, Of_a_step_without_any_weight_change_nothing) {
  const toy::Batch something = toy::samples(0, kSamples);
  toy::Batch nothing = toy::samples(kSamples, 2);
  nothing.weights.zero_();
  struct Task : TwoLosses {
    LossResult compute_loss(const Output& output, State& state, const JobSchedule& schedule) override {
      LossResult result = TwoLosses::compute_loss(output, state, schedule);
      if (state.batch.weights.count_nonzero().item<std::int64_t>() > 0) return result;
      for (auto& [name, loss] : result.losses) loss = output.sum() * 0;  // a mean over nothing would be NaN
      return result;
    }
  } task;
  toy::Job job({{something}, {nothing}});  // a job with only such steps fails
  Trainer<toy::Types> trainer = job.make_trainer(job.context, task);
  EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
  EXPECT_EQ(job.descent->steps->size(), 1U);
}

}  // namespace
}  // namespace d9d::test::several_losses_test
