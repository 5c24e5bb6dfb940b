#include "d9d/loop/checks/first_step_checks.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/regularization/dropout.h"
#include "d9d/core/error/error_place.h"
#include "d9d/data/build/make_pack_stream.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::first_step_checks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr std::int64_t kNumRanks = 3;

// Runs a job of replicas whose ranks get the samples from `first_sample(rank)` on. Throws what the job throws.
void train_on_ranks(const std::function<std::int64_t(std::int64_t rank)>& first_sample, bool refuses = true) {
  test::run_ranks(test::RankBackend::kThreads, kNumRanks, [&](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = kNumRanks}, .world = test::borrowed(world)});
    toy::Job job({{toy::samples(first_sample(world.rank()), 2)}});
    job.config.refuse_equal_data = refuses;
    job.config.logging.tracker = NullTrackerConfig{};
    Trainer<toy::Types> trainer = job.make_trainer(context, job.task);
    trainer.train();
  });
}

TEST(EqualData, Is_refused_and_names_the_ranks) {
  EXPECT_THAT([] { train_on_ranks([](std::int64_t rank) { return rank == 2 ? 1 : rank; }); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("the same first microbatch on 1 and 2"),
                                              HasSubstr("context.data_parallel_rank()"),
                                              HasSubstr("trainer.refuse_equal_data"))));
}

TEST(EqualData, Is_accepted_where_it_is_meant) {
  EXPECT_NO_THROW(train_on_ranks([](std::int64_t) { return 0; }, /*refuses=*/false));
}

TEST(EqualData, Differs_by_values_shape_and_dtype) {
  const at::Tensor x = at::zeros({2, 3});
  const std::uint64_t hash = hash_tensor(x, 0);
  EXPECT_EQ(hash_tensor(at::zeros({3, 2}).t(), 0), hash);
  EXPECT_NE(hash_tensor(x.view({3, 2}), 0), hash);
  EXPECT_NE(hash_tensor(x.view(at::kInt), 0), hash);
  EXPECT_NE(hash_tensor(x + 1, 0), hash);
}

TEST(EqualData, Of_sparse_tensors_differs_by_shape) {
  const auto sparse = [](std::int64_t rows) { return at::eye(rows).to_sparse(); };
  EXPECT_EQ(hash_tensor(sparse(2), 0), hash_tensor(sparse(2), 0));
  EXPECT_NE(hash_tensor(sparse(2), 0), hash_tensor(sparse(3), 0));
}

TEST(EqualData, Differs_by_values_beside_the_tensors_and_is_nothing_without_tensors) {
  struct Named {
    at::Tensor x;
    std::int64_t index;
    static constexpr auto fields() {
      return record<Named>(defaulted("x", &Named::x), defaulted("index", &Named::index));
    }
  };
  const auto hash = [](const at::Tensor& x, std::int64_t index) { return hash_of(Named{.x = x, .index = index}); };
  EXPECT_EQ(hash(at::ones({2}), 1), hash(at::ones({2}), 1));
  EXPECT_NE(hash(at::ones({2}), 1), hash(at::ones({2}), 2));
  EXPECT_EQ(hash(at::Tensor(), 1), std::nullopt);
}

// Returns the error of check_packs() for the packs of two ranks on a mesh.
std::string complaint(const DeviceMeshParameters& mesh, const std::vector<FirstPack>& packs) {
  try {
    test::run_ranks(test::RankBackend::kThreads, 2, [&](World& world) {
      const DistContext context({.mesh = mesh, .world = test::borrowed(world)});
      FirstStep(context).check_packs(packs[static_cast<std::size_t>(world.rank())]);
    });
  } catch (const StateError& error) {
    return error.what();
  }
  return "";
}

TEST(FirstPacks, Differ_between_data_parallel_ranks_unless_the_dataset_repeats_itself) {
  const DeviceMeshParameters mesh{.data_parallel_replicate = 2};
  EXPECT_EQ(complaint(mesh, {{7}, {8}}), "");
  EXPECT_THAT(complaint(mesh, {{7}, {7}}), HasSubstr("the same first microbatch on 0 and 1"));
  EXPECT_THAT(complaint(mesh, {{7, 0}, {7, 0}}), HasSubstr("the same first microbatch on 0 and 1"));
  EXPECT_EQ(complaint(mesh, {{7, 0}, {7, 1}}), "");
  EXPECT_EQ(complaint(mesh, {{std::nullopt}, {std::nullopt}}), "");
}

TEST(FirstPacks, Are_the_same_on_ranks_that_compute_a_microbatch_together) {
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.tensor_parallel = 2}, DeviceMeshParameters{.context_parallel_shard = 2}}) {
    EXPECT_EQ(complaint(mesh, {{7}, {7}}), "");
    EXPECT_THAT(complaint(mesh, {{7}, {8}}), HasSubstr("others on two ranks of data-parallel rank 0"));
  }
}

struct Numbers {
  std::int64_t count;
  std::int64_t size() const { return count; }
  at::Tensor get(std::int64_t index) const { return at::full({1}, index); }
};

TEST(DataOrder, Is_compared_over_ranks) {
  const auto check = [](const auto& size_of) {
    test::run_ranks(test::RankBackend::kThreads, kNumRanks, [&](World& world) {
      const DistContext context({.mesh = {.data_parallel_replicate = kNumRanks}, .world = test::borrowed(world)});
      const GlobalBatchSampler sampler({.dataset_size = size_of(world.rank()),
                                        .global_batch_size = 6,
                                        .microbatch_size = 2,
                                        .rank = {.index = world.rank(), .size = kNumRanks}});
      check_data_order(context, sampler.state(0));
    });
  };
  EXPECT_NO_THROW(check([](std::int64_t) { return 100; }));
  EXPECT_THAT(
      [&] { check([](std::int64_t rank) { return 100 + rank; }); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("one dataset in one order"), HasSubstr(R"("dataset_size":100)"),
                                       HasSubstr(R"("dataset_size":101)"), HasSubstr("on rank 1"))));
}

TEST(DataOrder, Of_streamed_rows_is_compared_over_ranks) {
  const auto check = [](const auto& rows_of) {
    test::run_ranks(test::RankBackend::kThreads, kNumRanks, [&](World& world) {
      const DistContext context({.mesh = {.data_parallel_replicate = kNumRanks}, .world = test::borrowed(world)});
      check_data_order(context, {{"part", 0}, {"sequence", 0}, {"order", {{"rows", rows_of(world.rank())}}}});
    });
  };
  EXPECT_NO_THROW(check([](std::int64_t) { return 100; }));
  EXPECT_THAT([&] { check([](std::int64_t rank) { return 100 + rank; }); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("one dataset in one order"), HasSubstr(R"("rows":101)"))));
}

// Returns the warnings of a short job whose model is `make_model()`.
std::string warnings_of(const std::function<ModulePtr<toy::Model>()>& make_model) {
  toy::Job job({{toy::samples(0, 2), toy::samples(2, 2)}, {toy::samples(4, 2)}});
  job.provider.make_model = make_model;
  job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{});
  ::testing::internal::CaptureStderr();
  job.train();
  std::string all = ::testing::internal::GetCapturedStderr(), warnings;
  std::istringstream lines(all);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("WARNING") != std::string::npos) warnings += line + '\n';
  }
  return warnings;
}

TEST(FirstStep, Says_nothing_about_a_model_that_is_trained) {
  EXPECT_THAT(warnings_of([] { return make_module<toy::Model>(); }), IsEmpty());
}

TEST(FirstStep, Names_parameters_that_no_loss_depends_on) {
  struct Detached : toy::Model {
    at::Tensor forward(const at::Tensor& x, const std::monostate&) override {
      return second(at::tanh(first(x)).detach());
    }
  };
  EXPECT_THAT(warnings_of([] { return make_module<Detached>(); }),
              HasSubstr("no loss of the first step depends on first.weight and 1 more"));
}

TEST(FirstStep, Is_content_with_parameters_of_one_microbatch_and_with_frozen_ones) {
  struct Alternating : toy::Model {
    at::Tensor forward(const at::Tensor& x, const std::monostate&) override {
      const at::Tensor hidden = at::tanh(first(x));
      return second(random_clock()->microbatch.number == 0 ? hidden.detach() : hidden);
    }
  };
  EXPECT_THAT(warnings_of([] { return make_module<Alternating>(); }), IsEmpty());
  EXPECT_THAT(warnings_of([] {
                auto model = make_module<toy::Model>();
                model->first->set_requires_grad(false);
                return model;
              }),
              IsEmpty());
}

TEST(FirstStep, Names_leaves_that_belong_to_no_module) {
  struct Unregistered : toy::Model {
    at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
      return toy::Model::forward(x, shared) * scale;
    }
    at::Tensor scale = at::ones({1, 1}, at::kDouble).requires_grad_();
  };
  EXPECT_THAT(warnings_of([] { return make_module<Unregistered>(); }),
              HasSubstr("depend on a tensor of shape [1, 1] that requires a gradient and belongs to no module"));
}

TEST(FirstStep, Is_content_with_leaves_that_forward_makes_for_itself) {
  struct GradientPenalty : toy::Model {
    at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
      return toy::Model::forward(x.detach().requires_grad_(), shared);
    }
  };
  EXPECT_THAT(warnings_of([] { return make_module<GradientPenalty>(); }), IsEmpty());
}

TEST(FirstStep, Is_content_with_a_loss_that_is_a_parameter) {
  struct Constant : toy::Model {
    at::Tensor forward(const at::Tensor&, const std::monostate&) override { return scale->local(); }
    const ParameterPtr scale = [this] {
      set_requires_grad(false);
      auto parameter = register_parameter("scale", {.shape = {}, .init = init::ones()});
      parameter->to(at::kDouble);
      return parameter;
    }();
  };
  struct : toy::Task {
    LossResult compute_loss(const Output& output, State& state, const JobSchedule&) override {
      state.output = output;
      return {.loss = output};
    }
  } task;
  toy::Job job({{toy::samples(0, 2)}});
  job.provider.make_model = [] { return make_module<Constant>(); };
  Trainer<toy::Types> trainer = job.make_trainer(job.context, task);
  ::testing::internal::CaptureStderr();
  trainer.train();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("WARNING")));
}

TEST(FirstStep, Knows_parameters_that_only_another_ranks_losses_depend_on) {
  struct OnOneRank : toy::Model {
    at::Tensor forward(const at::Tensor& x, const std::monostate&) override {
      const at::Tensor hidden = at::tanh(first(x));
      return second(random_clock()->microbatch.number == 1 ? hidden : hidden.detach());
    }
  };
  ::testing::internal::CaptureStderr();
  test::run_ranks(test::RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 2}, .world = test::borrowed(world)});
    toy::Job job({{toy::samples(4 * world.rank(), 2)}});
    job.provider.make_model = [] { return make_module<OnOneRank>(); };
    job.config.logging.tracker = NullTrackerConfig{};
    Trainer<toy::Types> trainer = job.make_trainer(context, job.task);
    trainer.train();
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("no loss of the first step")));
}

TEST(FirstStep, Names_the_use_of_libtorchs_generator_and_not_of_ours) {
  struct Dropping : toy::Model {
    at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
      return at::dropout(toy::Model::forward(x, shared), 0.1, /*train=*/true);
    }
  };
  EXPECT_THAT(warnings_of([] { return make_module<Dropping>(); }), HasSubstr("LibTorch's random generator was used"));
  struct OurDropping : toy::Model {
    at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
      return drop(toy::Model::forward(x, shared));
    }
    const ModulePtr<Dropout> drop = register_module<Dropout>("drop", 0.1);
  };
  EXPECT_THAT(warnings_of([] { return make_module<OurDropping>(); }), IsEmpty());
}

TEST(NegativeWeight, Is_refused) {
  toy::Batch batch = toy::samples(0, 2);
  batch.weights.neg_();
  toy::Job job({{toy::samples(2, 2), batch}});
  EXPECT_THAT([&] { job.train(); },
              ThrowsMessage<StateError>(HasSubstr("expected loss weights >= 0 of TrainTask, got a negative one")));
}

TEST(WeightThatIsNoNumber, Is_skipped_where_other_steps_without_a_finite_loss_are) {
  toy::Batch batch = toy::samples(0, 2);
  batch.weights.fill_(std::nan(""));
  toy::Job job({{batch}, {toy::samples(2, 2)}});
  job.config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
  EXPECT_EQ(job.descent->steps->size(), 1U);
}

TEST(ErrorsOfAStep, Name_module_and_microbatch) {
  toy::Job job({{toy::samples(0, 2)}, {toy::samples(0, 2), toy::samples(2, 2)}});
  struct Narrow : toy::Model {
    at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
      const bool is_last = random_clock()->microbatch.step == 1 && random_clock()->microbatch.number == 1;
      return toy::Model::forward(is_last ? x.narrow(1, 0, 1) : x, shared);
    }
  };
  job.provider.make_model = [] { return make_module<Narrow>(); };
  try {
    job.train();
    ADD_FAILURE() << "expected an error";
  } catch (const std::exception& error) {
    EXPECT_EQ(
        error_line(error),
        "[kernels::linear] expected x [..., in] and a weight [out, in] of one dtype and device, got [2, 1] Double on "
        "cpu and [3, 2] Double on cpu. Make them agree. (in first, microbatch 1 of step 1)");
  }
}

TEST(ErrorsOfAStep, Name_what_the_task_did) {
  toy::Job job({{toy::samples(0, 2)}});
  job.task.throws_at_step = 0;
  EXPECT_THAT([&] { job.train(); },
              ThrowsMessage<UsageError>("[toy] the task throws. (in compute_loss, microbatch 0 of step 0)"));
}

TEST(ErrorsOfAStep, Name_the_node_of_backward) {
  struct Failing : toy::Model {
    at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
      const at::Tensor out = toy::Model::forward(x, shared);
      out.register_hook([](const at::Tensor&) -> at::Tensor { throw StateError("[toy] the hook throws."); });
      return out;
    }
  };
  toy::Job job({{toy::samples(0, 2)}});
  job.provider.make_model = [] { return make_module<Failing>(); };
  EXPECT_THAT([&] { job.train(); },
              ThrowsMessage<StateError>(
                  AllOf(HasSubstr("[toy] the hook throws. (in backward of "), HasSubstr("microbatch 0 of step 0)"))));
}

}  // namespace
}  // namespace d9d::first_step_checks_test
