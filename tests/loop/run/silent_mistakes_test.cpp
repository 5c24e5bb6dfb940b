// Mistakes of a program that would give wrong numbers without any message.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/base/check.h"

#include "tests/loop/run/logged_job.h"

namespace d9d::silent_mistakes_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;
using toy::Layout;
using toy::log_of;
using toy::log_of_ranks;

// An optimiser whose author left something out.
struct OwnDescent {
  double learning_rate() const { return 0.5; }
  void step(double rate) {
    const at::NoGradGuard no_grad;
    for (const NamedParameter& parameter : parameters) parameter.tensor.sub_(parameter.tensor.grad(), rate);
  }
  std::map<std::string, DTensor> state_dict() const { return state(); }
  std::vector<NamedParameter> parameters;
  std::function<std::map<std::string, DTensor>()> state = [] { return std::map<std::string, DTensor>(); };
};
struct OwnProvider : OptimizerProvider {
  explicit OwnProvider(std::function<OwnDescent(std::vector<NamedParameter>)> build) : make(std::move(build)) {}
  Optimizer build_optimizer(const DistContext&, const TrainableParameters& trainable) override {
    return Optimizer(make(trainable.parameters));
  }
  std::function<OwnDescent(std::vector<NamedParameter>)> make;
};

TEST(OwnOptimizer, That_lacks_a_parameter_is_told_its_name) {
  const auto forgets = [](std::vector<NamedParameter> parameters) {
    std::erase_if(parameters, [](const NamedParameter& parameter) { return parameter.name == "second.weight"; });
    return OwnDescent{parameters};
  };
  EXPECT_THAT(log_of([&](toy::Job& job) { job.optimizer = std::make_shared<OwnProvider>(forgets); }),
              HasSubstr("the optimiser's first two steps did not change second.weight, which has a gradient"));
  EXPECT_THAT(log_of([&](toy::Job& job) {
                job.optimizer = std::make_shared<OwnProvider>([](auto parameters) { return OwnDescent{parameters}; });
              }),
              Not(HasSubstr("WARNING")));
}

TEST(OwnOptimizer, That_starts_without_a_rate_is_looked_at_when_it_has_one) {
  EXPECT_THAT(log_of([&](toy::Job& job) {
                job.provider.packs.push_back(job.provider.packs.back());
                job.config.schedule.total_steps = 3;
                job.lr_scheduler = AutoLRSchedulerProvider(PiecewiseConfig{
                    .initial_multiplier = 0.0,
                    .phases = {RestPhaseConfig{.target_multiplier = 1.0, .curve = LinearCurveConfig{}}}});
                job.optimizer = std::make_shared<OwnProvider>(
                    [](std::vector<NamedParameter>) { return OwnDescent{std::vector<NamedParameter>()}; });
              }),
              HasSubstr("did not change first.bias and 3 more"));
}

// Returns the log of a job that saves.
std::string log_of_saving(const std::shared_ptr<OptimizerProvider>& optimizer) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "d9d_silent_state";
  std::filesystem::remove_all(folder);
  return log_of([&](toy::Job& job) {
    job.config.checkpointing = {.save_dir = folder, .period_steps = {StepActionMode::kLastStep}};
    job.optimizer = optimizer;
  });
}

// Of an optimiser that has the state_dict() that `state` builds from its parameters.
std::string log_of_state(
    const std::function<std::map<std::string, DTensor>(const std::vector<NamedParameter>&)>& state) {
  return log_of_saving(std::make_shared<OwnProvider>([=](std::vector<NamedParameter> parameters) {
    return OwnDescent{parameters, [=] { return state(parameters); }};
  }));
}

TEST(GradientDescent, Is_not_told_that_it_has_no_state) {
  EXPECT_THAT(log_of_saving(std::make_shared<AutoOptimizerProvider>(SgdConfig{.lr = 0.1})), Not(HasSubstr("WARNING")));
}

TEST(OwnOptimizer, Whose_state_would_be_lost_is_refused_or_told) {
  std::map<std::string, at::Tensor> kept;
  const auto moment = [&](const NamedParameter& parameter) {
    return kept.try_emplace(parameter.name, at::zeros_like(parameter.tensor.detach())).first->second;
  };
  EXPECT_THAT(log_of_state([&](const auto& parameters) {
                std::map<std::string, DTensor> state;
                for (const auto& one : parameters) state.emplace(one.name + ".moment", one.laid_out(moment(one)));
                return state;
              }),
              Not(AnyOf(HasSubstr("WARNING"), HasSubstr("state_dict"))));
  EXPECT_THAT(log_of_state([](const auto&) { return std::map<std::string, DTensor>(); }),
              HasSubstr("no state of the optimiser, since its state_dict() is empty"));
  EXPECT_THAT(log_of_state([&](const auto& parameters) {
                std::map<std::string, DTensor> state;
                for (const auto& one : parameters) state.emplace("moment", one.laid_out(moment(one)));
                return state;
              }),
              HasSubstr("the optimiser's state 'moment' is named after no parameter"));
  EXPECT_THAT(log_of_state([&](const auto& parameters) {
                const NamedParameter& one = parameters.front();
                return std::map<std::string, DTensor>{{one.name + ".moment", one.laid_out(moment(one))}};
              }),
              HasSubstr("no state of the optimiser for first.bias, but some for other parameters"));
  EXPECT_THAT(log_of_state([&](const auto& parameters) {
                const NamedParameter& one = parameters.front();
                return std::map<std::string, DTensor>{{one.name + ".moment", one.laid_out(moment(one).clone())}};
              }),
              HasSubstr("own tensors in state_dict(), got a new one as 'first.weight.moment' at each call"));
}

TEST(OwnModel, That_writes_values_before_there_is_memory_is_refused) {
  struct Zeroed : toy::Model {
    Zeroed() {
      const at::NoGradGuard no_grad;
      second->weight->local().zero_();
    }
  };
  EXPECT_THAT(log_of([](toy::Job& job) { job.provider.make_model = [] { return make_module<Zeroed>(); }; }),
              HasSubstr("got writes to second.weight, which are lost. Say its values with ParameterSpec::init"));
}

// Calls `act` after the first step.
struct ActingTask : toy::Task {
  explicit ActingTask(std::function<void(Module&)> after_step) : act(std::move(after_step)) {}
  void register_events(const DistContext&, EventBus& events) override {
    events.subscribe(kTrainModelStagesReady,
                     [this](const ModelStagesReady& ready) { module = &ready.modules[0].get(); });
    events.subscribe(kTrainStepPost, [this](const FinishedStep& step) {
      if (step.schedule.current_step() == 0) act(*module);
    });
  }
  std::function<void(Module&)> act;
  Module* module = nullptr;
};

std::string log_of_task(
    toy::Task& task, const std::function<void(toy::Job&)>& change = [](toy::Job&) {}) {
  toy::Job job({{toy::samples(0, 2), toy::samples(2, 2)}, {toy::samples(4, 2)}, {toy::samples(6, 2)}});
  change(job);
  Trainer<toy::Types> trainer = job.make_trainer(job.context, task);
  ::testing::internal::CaptureStderr();
  std::string thrown;
  try {
    (void)trainer.train();
  } catch (const std::exception& error) {
    thrown = error.what();
  }
  return ::testing::internal::GetCapturedStderr() + thrown;
}

TEST(EvaluationMode, Of_the_model_is_told_once) {
  ActingTask task([](Module& module) { module.eval(); });
  const std::string said = log_of_task(task);
  constexpr const char* kWarning = "the model is in evaluation mode in step 1";
  EXPECT_THAT(said, HasSubstr(kWarning));
  EXPECT_EQ(said.find("evaluation mode"), said.rfind("evaluation mode"));
}

TEST(EvaluationMode, Of_a_part_stays) {
  bool is_first_training = true;
  ActingTask task([&](Module& module) {
    module.for_each_module([&](const std::string& name, Module& part) {
      if (name == "first") is_first_training = part.is_training();
    });
  });
  EXPECT_THAT(log_of_task(task,
                          [](toy::Job& job) {
                            job.provider.make_model = [] {
                              auto model = make_module<toy::Model>();
                              model->first->eval();
                              return model;
                            };
                          }),
              Not(HasSubstr("evaluation mode")));
  EXPECT_FALSE(is_first_training);
}

struct BackwardTask : toy::Task {
  LossResult compute_loss(const Output& output, State& state, const JobSchedule& schedule) override {
    LossResult result = toy::Task::compute_loss(output, state, schedule);
    result.loss.backward({}, /*retain_graph=*/true);
    return result;
  }
};

TEST(OwnBackward, Is_refused) {
  BackwardTask task;
  EXPECT_THAT(log_of_task(task), AllOf(HasSubstr("to leave the backward to the loop, got one of their own"),
                                       HasSubstr("microbatch 0 of step 0")));
  for (const Layout layout : {Layout::kReplicas, Layout::kShards}) {
    EXPECT_THAT(log_of_ranks<BackwardTask>([](toy::Job&, std::int64_t) {}, layout),
                HasSubstr("to leave the backward to the loop"));
  }
}

struct PenaltyTask : toy::Task {
  LossResult compute_loss(const Output& output, State& state, const JobSchedule& schedule) override {
    LossResult result = toy::Task::compute_loss(output, state, schedule);
    const auto gradients = torch::autograd::grad({output.sum()}, {output}, {}, /*retain_graph=*/true);
    result.loss = result.loss + 0 * gradients.front().sum();
    return result;
  }
};

TEST(OwnBackward, That_adds_to_no_gradient_is_accepted) {
  PenaltyTask task;
  EXPECT_THAT(log_of_task(task), Not(HasSubstr("backward")));
}

struct NegativeTokensTask : toy::Task {
  ForwardInputs<toy::Types> build_forward_inputs(const toy::Batch& batch) override {
    auto inputs = toy::Task::build_forward_inputs(batch);
    inputs.num_tokens = -1;
    return inputs;
  }
};

TEST(NegativeTokens, Are_refused) {
  NegativeTokensTask task;
  EXPECT_THAT(log_of_task(task), HasSubstr("expected ForwardInputs::num_tokens >= 0, got -1 of microbatch 0"));
}

struct MaskingTask : toy::Task {
  ForwardInputs<toy::Types> build_forward_inputs(const toy::Batch& batch) override {
    batch.x.fill_(0);
    return toy::Task::build_forward_inputs(batch);
  }
};

TEST(BatchOfATask, Is_its_own_copy) {
  const toy::Batch cached = toy::samples(0, 2);
  const at::Tensor before = cached.x.clone();
  toy::Job job({{cached}});
  MaskingTask task;
  (void)job.make_trainer(job.context, task).train();
  EXPECT_TRUE(at::equal(cached.x, before));
}

TEST(MeanOverNothing, Is_the_reason_that_is_given) {
  struct : toy::Task {
    LossResult compute_loss(const Output& output, State& state, const JobSchedule& schedule) override {
      LossResult result = toy::Task::compute_loss(output, state, schedule);
      return {.loss = result.loss * state.batch.weights.sum() / state.batch.weights.sum(),
              .loss_weight = *result.loss_weight};
    }
  } task;
  toy::Batch empty = toy::samples(2, 2);
  empty.weights.zero_();
  EXPECT_THAT(log_of_task(task, [&](toy::Job& job) { job.provider.packs[0][1] = empty; }),
              AllOf(HasSubstr("microbatch 1 of rank 0 has the weight 0 and a loss that is no number"),
                    Not(HasSubstr("learning rate"))));
}

void train_on(toy::Job& job, DataProvider<toy::Batch>& data) {
  Trainer<toy::Types>(job.context, job.config,
                      {.task = job.task,
                       .model = job.provider,
                       .data = data,
                       .optimizer = *job.optimizer,
                       .lr_scheduler = job.lr_scheduler})
      .train();
}

TEST(RandomData, Is_told_without_workers_too) {
  struct Provider : toy::Provider {
    std::unique_ptr<PackStream<toy::Batch>> build_pack_stream(const DistContext&,
                                                              std::optional<std::int64_t>) override {
      struct Noisy : toy::Provider::Stream {
        std::optional<std::vector<toy::Batch>> next() {
          auto pack = Stream::next();
          if (pack) pack->front().x.add_(at::rand({2, 2}, at::kDouble));
          return pack;
        }
      };
      return as_pack_stream<toy::Batch>(Noisy{{.packs = packs}});
    }
  } data;
  toy::Job job({{toy::samples(0, 2)}});
  job.config.data_prefetch.prefetch_factor = 0;  // otherwise a thread may have read before the step
  data.packs = job.provider.packs;
  ::testing::internal::CaptureStderr();
  train_on(job, data);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("LibTorch's random generator was used"));
}

TEST(StreamOfOnesOwn, That_stays_where_it_is_at_a_resume_is_refused) {
  struct Provider : toy::Provider {
    std::unique_ptr<PackStream<toy::Batch>> build_pack_stream(const DistContext&,
                                                              std::optional<std::int64_t>) override {
      struct Forgetful : toy::Provider::Stream {
        void load_state(const nlohmann::json&) {}
      };
      return as_pack_stream<toy::Batch>(Forgetful{{.packs = packs}});
    }
  } data;
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "d9d_forgetful_stream";
  std::filesystem::remove_all(folder);
  const auto train = [&](std::int64_t num_steps) {
    toy::Job job({{toy::samples(0, 2)}, {toy::samples(2, 2)}});
    job.config.checkpointing = {.save_dir = folder, .period_steps = {StepActionMode::kLastStep}};
    job.config.schedule.total_steps = num_steps;
    data.packs = job.provider.packs;
    train_on(job, data);
  };
  train(1);
  EXPECT_THAT(
      [&] { train(2); },
      ThrowsMessage<StateError>(HasSubstr("continues at 1 after PackStream::load_state(), got one that stays at 0")));
}

}  // namespace
}  // namespace d9d::silent_mistakes_test
