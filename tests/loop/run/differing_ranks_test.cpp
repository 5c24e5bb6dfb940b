// Ranks of one job whose configurations, models or data differ.
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include "d9d/modules/adopt.h"

#include "tests/loop/run/logged_job.h"

namespace d9d::differing_ranks_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using toy::Layout;
using toy::log_of_ranks;

TEST(RanksThatDiffer, Say_nothing_where_they_do_not) {
  for (const Layout layout : {Layout::kReplicas, Layout::kShards}) {
    EXPECT_THAT(log_of_ranks([](toy::Job&, std::int64_t) {}, layout), Not(HasSubstr("WARNING")));
  }
}

TEST(RanksThatDiffer, In_a_key_of_the_configuration_are_refused) {
  const std::string said =
      log_of_ranks([](toy::Job& job, std::int64_t rank) { job.config.determinism.base_seed = 7 + rank; });
  EXPECT_THAT(said, HasSubstr("got trainer.determinism.base_seed = 7 on rank 0 and 8 on rank 1"));
  EXPECT_THAT(log_of_ranks([](toy::Job& job, std::int64_t rank) {
                if (rank == 1) job.config.gradient_clipping.max_norm = 2.0;
              }),
              HasSubstr("trainer.gradient_clipping.max_norm = "));
  EXPECT_THAT(
      log_of_ranks([](toy::Job& job, std::int64_t rank) { job.config.checkpointing.save_dir = cat("run/of", rank); }),
      HasSubstr("trainer.checkpointing.save_dir = \"run/of0\" on rank 0 and \"run/of1\" on rank 1"));
  EXPECT_THAT(log_of_ranks([](toy::Job& job, std::int64_t rank) { job.config.run.name = cat("of", rank); }),
              Not(HasSubstr("one configuration")));
}

// Comparing shapes and learning rates would find neither difference.
TEST(RanksThatDiffer, In_the_optimiser_or_the_task_are_refused_by_key) {
  EXPECT_THAT(
      log_of_ranks([](toy::Job& job, std::int64_t rank) {
        job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1, .weight_decay = 0.1 * rank});
      }),
      HasSubstr("expected one configuration on all ranks, got optimizer.weight_decay = 0.0 on rank 0 and 0.1 on "));
  static std::atomic<int> next = 0;
  struct Numbered : toy::Task {
    nlohmann::json dump_hparams() const override { return {{"rope_base", next++}}; }
  };
  EXPECT_THAT(log_of_ranks<Numbered>([](toy::Job&, std::int64_t) {}), HasSubstr("got task.rope_base = "));
}

// Neither changes the shape of a parameter.
TEST(RanksThatDiffer, In_the_scale_or_dropout_of_adapters_are_refused_by_key) {
  const auto said = [](const std::function<LoraParams(std::int64_t rank)>& params) {
    return log_of_ranks([&](toy::Job& job, std::int64_t rank) {
      job.provider.method = LoraConfig{.module_name_pattern = "first", .params = params(rank)};
    });
  };
  EXPECT_THAT(said([](auto rank) { return LoraParams{.r = 2, .alpha = 1.0 + static_cast<double>(rank)}; }),
              HasSubstr("got model.adapters.params.alpha = 1.0 on rank 0 and 2.0 on rank 1"));
  EXPECT_THAT(said([](auto rank) { return LoraParams{.r = 2, .alpha = 1.0, .dropout = rank == 0 ? 0.0 : 0.5}; }),
              HasSubstr("got model.adapters.params.dropout = "));
  EXPECT_THAT(said([](auto) { return LoraParams{.r = 2, .alpha = 1.0}; }), Not(HasSubstr("one configuration")));
}

TEST(RanksThatDiffer, In_the_model_are_refused_by_parameter) {
  struct Wide : toy::Model {
    const ParameterPtr extra = register_parameter("extra", {.shape = {3}, .init = init::ones()});
  };
  EXPECT_THAT(log_of_ranks([](toy::Job& job, std::int64_t rank) {
                if (rank == 1) job.provider.make_model = [] { return make_module<Wide>(); };
              }),
              HasSubstr("expected one model on all ranks, got extra = nothing on rank 0 and \"Float [3]\" on rank 1"));
}

// Ranks sum gradients in the order in which parameters are registered.
TEST(RanksThatDiffer, In_the_order_of_parameters_are_refused) {
  struct Ordered : toy::Model {
    explicit Ordered(const std::vector<std::string>& names) {
      for (const std::string& name : names) register_parameter(name, {.shape = {3}, .init = init::ones()});
    }
  };
  EXPECT_THAT(log_of_ranks([](toy::Job& job, std::int64_t rank) {
                job.provider.make_model = [rank]() -> ModulePtr<toy::Model> {
                  return make_module<Ordered>(rank == 0 ? std::vector<std::string>{"a", "b"}
                                                        : std::vector<std::string>{"b", "a"});
                };
              }),
              HasSubstr("expected one model on all ranks, got the place of a = "));
}

// Calls `act(model, step)` before each step.
struct ActingTask : toy::Task {
  void register_events(const DistContext& context, EventBus& events) override {
    events.subscribe(kTrainModelStagesReady, [this, &context](const ModelStagesReady& ready) {
      module = &ready.modules[0].get();
      if (when_built) when_built(*module, context.rank());
    });
    events.subscribe(kTrainStepPre, [this, &context](const TrainStep& step) {
      if (before_step) before_step(*module, context.rank(), step.schedule.current_step());
    });
  }
  static inline std::function<void(Module&, std::int64_t rank)> when_built = {};
  static inline std::function<void(Module&, std::int64_t rank, std::int64_t step)> before_step = {};
  Module* module = nullptr;
};

void freeze(Module& module, const std::string& part) {
  module.for_each_module([&](const std::string& name, Module& each) {
    if (name == part) each.set_requires_grad(false);
  });
}

std::string log_of_acting_ranks(const std::function<void(toy::Job&, std::int64_t)>& change, Layout layout,
                                const std::filesystem::path& export_to = {}) {
  const std::string said = log_of_ranks<ActingTask>(change, layout, export_to);
  ActingTask::when_built = {};
  ActingTask::before_step = {};
  return said;
}

TEST(RanksThatDiffer, In_what_they_freeze_are_refused_by_parameter) {
  ActingTask::when_built = [](Module& module, std::int64_t rank) { freeze(module, rank == 0 ? "first" : "second"); };
  EXPECT_THAT(log_of_acting_ranks([](toy::Job&, std::int64_t) {}, Layout::kReplicas),
              HasSubstr("got first.bias.requires_grad = false on rank 0 and true on rank 1"));
  ActingTask::when_built = [](Module& module, std::int64_t) { freeze(module, "first"); };
  EXPECT_THAT(log_of_acting_ranks([](toy::Job&, std::int64_t) {}, Layout::kReplicas), Not(HasSubstr("requires_grad")));
}

TEST(Freezing, In_the_middle_of_a_job_is_refused_on_every_layout) {
  for (const Layout layout : {Layout::kReplicas, Layout::kShards}) {
    ActingTask::before_step = [](Module& module, std::int64_t, std::int64_t step) {
      if (step == 1) freeze(module, "first");
    };
    EXPECT_THAT(log_of_acting_ranks([](toy::Job&, std::int64_t) {}, layout),
                HasSubstr("expected requires_grad = 1 of first."));
  }
  ActingTask task;
  const auto said_alone = [&](const std::function<void(Module&)>& early, const std::function<void(Module&)>& late) {
    ActingTask::when_built = [&](Module& module, std::int64_t) { early(module); };
    ActingTask::before_step = [&](Module& module, std::int64_t, std::int64_t step) {
      if (step == 1) late(module);
    };
    toy::Job job({{toy::samples(0, 2)}, {toy::samples(2, 2)}});
    std::string said;
    try {
      (void)job.make_trainer(job.context, task).train();
    } catch (const StateError& error) {
      said = error.what();
    }
    ActingTask::when_built = {};
    ActingTask::before_step = {};
    return said;
  };
  const auto nothing = [](Module&) {};
  EXPECT_EQ(said_alone(nothing, nothing), "");
  EXPECT_THAT(said_alone(nothing, [](Module& module) { freeze(module, "first"); }),
              HasSubstr("expected requires_grad = 1 of first."));
  EXPECT_THAT(said_alone([](Module& module) { freeze(module, "first"); },
                         [](Module& module) { module.set_requires_grad(true); }),
              HasSubstr("expected requires_grad = 0 of first."));
}

TEST(Freezing, Between_the_optimiser_and_the_first_step_is_refused) {
  struct LateTask : ActingTask {
    void register_events(const DistContext& context, EventBus& events) override {
      ActingTask::register_events(context, events);
      events.subscribe(kTrainOptimizerReady, [this](const OptimizerReady&) { freeze(*module, "second"); });
    }
  } task;
  toy::Job job({{toy::samples(0, 2)}});
  EXPECT_THAT([&] { (void)job.make_trainer(job.context, task).train(); },
              ::testing::ThrowsMessage<StateError>(HasSubstr("expected requires_grad = 1 of second.")));
}

TEST(Freezing, Around_the_optimisers_step_is_refused) {
  struct FreezingTask : ActingTask {
    void register_events(const DistContext& context, EventBus& events) override {
      ActingTask::register_events(context, events);
      events.subscribe(kTrainOptimizerStepPre, [this](const TrainStep&) { freeze(*module, "second"); });
      events.subscribe(kTrainOptimizerStepPost, [this](const TrainStep&) { module->set_requires_grad(true); });
    }
  } task;
  toy::Job job({{toy::samples(0, 2)}});
  EXPECT_THAT([&] { (void)job.make_trainer(job.context, task).train(); },
              ::testing::ThrowsMessage<StateError>(HasSubstr("expected requires_grad = 1 of second.")));
}

// A job that saves after each step into an empty folder.
void save_each_step(toy::Job& job) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "d9d_differing_ranks";
  job.config.checkpointing = {.save_dir = folder, .period_steps = {EverySteps{1}}};
}
std::string log_of_saves(const std::function<void(toy::Job&, std::int64_t)>& change, Layout layout) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "d9d_differing_ranks";
  std::filesystem::remove_all(folder);
  std::string said = log_of_acting_ranks(
      [&](toy::Job& job, std::int64_t rank) {
        save_each_step(job);
        change(job, rank);
      },
      layout);
  for (const int step : {1, 2}) {
    if (std::filesystem::exists(folder / cat("save-", step))) said += cat(" has save-", step);
  }
  std::filesystem::remove_all(folder);
  return said;
}

TEST(Replicas, That_a_handler_of_one_rank_makes_different_are_refused_at_the_next_save) {
  ActingTask::before_step = [](Module& module, std::int64_t rank, std::int64_t step) {
    if (step != 1 || rank != 0) return;
    const at::NoGradGuard no_grad;
    module.named_parameters().back().second->local().add_(1e-3);
  };
  EXPECT_THAT(log_of_saves([](toy::Job&, std::int64_t) {}, Layout::kReplicas),
              ::testing::AllOf(HasSubstr("expected equal values of model.second."), HasSubstr("others on rank 0"),
                               HasSubstr("has save-1"), Not(HasSubstr("has save-2"))));
}

// on_failed_save = "continue" only applies to failures of disks.
TEST(Replicas, That_differ_are_refused_where_failed_saves_are_not) {
  ActingTask::before_step = [](Module& module, std::int64_t rank, std::int64_t step) {
    if (step == 0 && rank == 0) module.named_parameters().back().second->local().detach().add_(1e-3);
  };
  EXPECT_THAT(log_of_saves([](toy::Job& job,
                              std::int64_t) { job.config.checkpointing.on_failed_save = FailedSavePolicy::kContinue; },
                           Layout::kReplicas),
              ::testing::AllOf(HasSubstr("expected equal values of "), Not(HasSubstr("has save-"))));
}

TEST(Replicas, That_begin_with_other_values_are_refused_in_the_first_step) {
  ActingTask::when_built = [](Module& module, std::int64_t rank) {
    if (rank == 0) module.named_parameters().back().second->local().detach().add_(1e-3);
  };
  EXPECT_THAT(log_of_acting_ranks([](toy::Job&, std::int64_t) {}, Layout::kReplicas),
              HasSubstr("on all ranks that hold the same elements after the first step, got others"));
}

TEST(Replicas, That_differ_are_not_exported_by_a_job_that_saves_nothing) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "d9d_differing_export";
  std::filesystem::remove_all(folder);
  const auto said = [&](double other) {
    ActingTask::before_step = [other](Module& module, std::int64_t rank, std::int64_t step) {
      if (step == 1 && rank == 0) module.named_parameters().back().second->local().detach().add_(other);
    };
    return log_of_acting_ranks([](toy::Job&, std::int64_t) {}, Layout::kReplicas, folder / "export");
  };
  EXPECT_THAT(said(1e-3), HasSubstr("expected equal values of second."));
  EXPECT_FALSE(std::filesystem::exists(folder / "export" / "model.safetensors"));
  EXPECT_THAT(said(0.0), Not(HasSubstr("expected equal values")));
  EXPECT_TRUE(std::filesystem::exists(folder / "export" / "model.safetensors"));
  std::filesystem::remove_all(folder);
}

struct Summing : toy::Model {
  at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
    if (sum->local.defined()) sum->local.add_(x.detach().sum());
    return toy::Model::forward(x, shared);
  }
  const BufferPtr sum = register_buffer("sum", {.shape = {1}, .dtype = at::kDouble, .init = init::zeros()});
};
struct Averaging : Summing {
  void on_step_finished(StepOutcome) override { sum->local.zero_(); }
};

TEST(Buffers, That_a_rank_changes_by_its_own_data_are_refused_at_a_save) {
  const auto makes = [](auto model) {
    return [model](toy::Job& job, std::int64_t) { job.provider.make_model = model; };
  };
  EXPECT_THAT(log_of_saves(makes([]() -> ModulePtr<toy::Model> { return make_module<Summing>(); }), Layout::kReplicas),
              ::testing::AllOf(HasSubstr("expected equal values of model.sum[0:1] on all ranks that have it"),
                               HasSubstr("set is_persistent to false"), Not(HasSubstr("has save-"))));
  EXPECT_THAT(
      log_of_saves(makes([]() -> ModulePtr<toy::Model> { return make_module<Averaging>(); }), Layout::kReplicas),
      ::testing::AllOf(Not(HasSubstr("expected")), HasSubstr("has save-1 has save-2")));
}

struct Normed : toy::Model {
  at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
    return toy::Model::forward(norm(x), shared);
  }
  const ModulePtr<Adopted<torch::nn::BatchNorm1dImpl>> norm = register_module("norm", adopt([] {
                                                                                auto made = torch::nn::BatchNorm1d(2);
                                                                                made->to(at::kDouble);
                                                                                return made;
                                                                              }));
};

// Running statistics of two ranks that compute on different data: evaluation and checkpoints use those of the first
// rank.
TEST(Buffers, Of_adopted_modules_are_those_of_the_first_rank_and_continue_as_without_a_stop) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "d9d_adopted_buffers";
  std::mutex mutex;
  using Tensors = std::map<std::string, at::Tensor>;
  const auto train = [&](std::int64_t num_steps, Layout layout) {
    std::map<std::int64_t, Tensors> of_ranks;
    ActingTask::before_step = [&](Module& module, std::int64_t rank, std::int64_t) {
      const std::lock_guard lock(mutex);
      of_ranks[rank].clear();
      for (const auto& [name, buffer] : module.named_buffers()) of_ranks[rank][name] = buffer->local.clone();
    };
    const std::string said = log_of_acting_ranks(
        [&](toy::Job& job, std::int64_t rank) {
          for (std::int64_t step = 2; step <= num_steps; ++step) {
            job.provider.packs.push_back({toy::samples(20 * step + 2 * rank, 2)});
          }
          job.config.schedule.total_steps = num_steps;
          job.config.checkpointing = {.save_dir = folder, .period_steps = {EverySteps{1}}};
          job.provider.make_model = []() -> ModulePtr<toy::Model> { return make_module<Normed>(); };
        },
        layout);
    EXPECT_THAT(said, Not(HasSubstr("expected")));
    return of_ranks;
  };
  for (const Layout layout : {Layout::kReplicas, Layout::kShards}) {
    SCOPED_TRACE(static_cast<int>(layout));
    std::filesystem::remove_all(folder);
    const auto whole = train(4, layout);
    ASSERT_EQ(whole.size(), 2);
    EXPECT_NE(whole.at(0).at("norm.running_mean").abs().sum().item<double>(), 0);
    for (const auto& [name, buffer] : whole.at(0)) EXPECT_TRUE(at::equal(whole.at(1).at(name), buffer)) << name;
    for (const int step : {3, 4}) std::filesystem::remove_all(folder / cat("save-", step));
    const auto continued = train(4, layout);
    for (const auto& [name, buffer] : whole.at(1)) EXPECT_TRUE(at::equal(continued.at(1).at(name), buffer)) << name;
  }
  std::filesystem::remove_all(folder);
}

// An optimiser that counts the samples of its rank.
struct CountingOptimizer : AdamW {
  CountingOptimizer(const std::vector<NamedParameter>& parameters, double start)
      : AdamW(parameters, {.lr = 0.1}), count(at::full({}, start, at::kDouble)) {}
  std::map<std::string, DTensor> state_dict() const {
    auto state = AdamW::state_dict();
    state.emplace("count", whole_dtensor(count));
    return state;
  }
  at::Tensor count;
};

TEST(OptimiserState, That_is_whole_and_differs_is_refused_at_a_save) {
  struct CountingProvider : OptimizerProvider {
    Optimizer build_optimizer(const DistContext& context, const TrainableParameters& trainable) override {
      return Optimizer(CountingOptimizer(trainable.parameters, is_of_rank ? 1.0 + context.rank() : 1.0));
    }
    bool is_of_rank = false;
  };
  for (const Layout layout : {Layout::kReplicas, Layout::kShards}) {
    for (const bool is_of_rank : {true, false}) {
      const std::string said = log_of_saves(
          [&](toy::Job& job, std::int64_t) {
            const auto provider = std::make_shared<CountingProvider>();
            provider->is_of_rank = is_of_rank;
            job.optimizer = provider;
          },
          layout);
      if (is_of_rank) {
        EXPECT_THAT(said, HasSubstr("expected equal values of optimizer.count on all ranks"));
      } else {
        EXPECT_THAT(said, HasSubstr("has save-1 has save-2"));
      }
    }
  }
}

TEST(RanksThatDiffer, In_the_number_of_microbatches_are_refused_where_they_share_parameters) {
  for (const std::int64_t prefetch_factor : {0, 1, 2}) {
    for (const std::size_t step : {0U, 1U}) {
      const auto has_two_on_rank_1 = [&](toy::Job& job, std::int64_t rank) {
        job.config.data_prefetch.prefetch_factor = prefetch_factor;
        if (rank == 1) job.provider.packs[step].push_back(toy::samples(20, 2));
      };
      EXPECT_THAT(
          log_of_ranks(has_two_on_rank_1, Layout::kShards),
          ::testing::AllOf(HasSubstr("expected as many microbatches on all ranks that hold parts of first.weight"),
                           HasSubstr(cat("got 1 on rank 0 and 2 on rank 1 in step ", step))));
      EXPECT_THAT(log_of_ranks(has_two_on_rank_1, Layout::kReplicas), Not(HasSubstr("expected")));
    }
  }
}

// An optimiser provider without dump_hparams(), as a custom one may be.
struct SilentProvider : OptimizerProvider {
  explicit SilentProvider(const AdamWConfig& config) : adamw_(config) {}
  Optimizer build_optimizer(const DistContext& context, const TrainableParameters& parameters) override {
    return adamw_.build_optimizer(context, parameters);
  }

 private:
  AutoOptimizerProvider adamw_;
};

TEST(RanksThatDiffer, In_the_learning_rate_are_refused) {
  EXPECT_THAT(log_of_ranks([](toy::Job& job, std::int64_t rank) {
                job.optimizer = std::make_shared<SilentProvider>(AdamWConfig{.lr = 0.1 * (1.0 + rank)});
              }),
              HasSubstr("got the optimiser's learning rate = 0.1 on rank 0 and 0.2 on rank 1"));
}

TEST(RanksThatDiffer, In_what_an_update_does_are_refused_after_it) {
  const auto decays_by_rank = [](toy::Job& job, std::int64_t rank) {
    job.optimizer = std::make_shared<SilentProvider>(AdamWConfig{.lr = 0.1, .weight_decay = 0.1 * rank});
  };
  EXPECT_THAT(log_of_ranks(decays_by_rank), HasSubstr("hold the same elements after the first step, got others"));
  // Each slice of FSDP belongs to one rank, so there is nothing to compare.
  EXPECT_THAT(log_of_ranks(decays_by_rank, Layout::kShards), Not(HasSubstr("hold the same elements")));
}

}  // namespace
}  // namespace d9d::differing_ranks_test
