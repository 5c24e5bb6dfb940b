#include "d9d/internals/grad_sync/bucketed_reduction.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/dtype/scalar_type.h"

#include "tests/support/gpu_ranks.h"
#include "tests/support/ranks.h"

namespace d9d::test::bucketed_reduction_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using NamedParameters = std::vector<std::pair<std::string, ParameterPtr>>;

constexpr std::int64_t kNumRanks = 4;

// Parameters of ones; those with is_summed are summed over dp.
NamedParameters make_parameters(World& world, at::ScalarType dtype, const std::vector<bool>& is_summed) {
  const DeviceMesh mesh("m", {{"dp", world.size()}}, borrowed(world));
  NamedParameters parameters;
  for (std::size_t i = 0; i < is_summed.size(); ++i) {
    const auto size = static_cast<std::int64_t>(3 + 20 * i);
    auto parameter = std::make_shared<Parameter>(ParameterSpec{.shape = {size, 2}, .init = init::ones()});
    parameter->to(dtype);
    if (is_summed[i]) parameter->place(mesh, "dp", Replicate{}, Partial{});
    parameter->materialize(world.device());
    parameter->reset({});
    parameters.emplace_back("p" + std::to_string(i), parameter);
  }
  return parameters;
}

// Gives every element the gradient `value`.
void backward(const NamedParameters& parameters, double value) {
  at::Tensor sum = at::zeros({}, parameters.front().second->local().options().dtype(at::kDouble));
  for (const auto& [name, parameter] : parameters) sum = sum + parameter->local().to(at::kDouble).sum() * value;
  sum.backward();
}

struct Dtypes {
  at::ScalarType parameter;
  at::ScalarType gradient;
};
class BucketedReductionOf : public ::testing::TestWithParam<Dtypes> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, BucketedReductionOf,
                         ::testing::Values(Dtypes{at::kFloat, at::kFloat}, Dtypes{at::kBFloat16, at::kFloat},
                                           Dtypes{at::kBFloat16, at::kBFloat16}),
                         [](const auto& dtypes) {
                           return std::string(c10::toString(dtypes.param.parameter)) + "_" +
                                  c10::toString(dtypes.param.gradient);
                         });

TEST_P(BucketedReductionOf, Sums_over_microbatches_and_the_ranks_of_partial_axes) {
  run_ranks(RankBackend::kThreads, kNumRanks, [](World& world) {
    const NamedParameters parameters = make_parameters(world, GetParam().parameter, {true, false, true, true, false});
    BucketedReduction sync(parameters, {.bucket_size_bytes = 256, .gradient_dtype = find_dtype(GetParam().gradient)});
    EXPECT_GT(sync.num_buckets(), 1);
    for (int step = 0; step < 3; ++step) {
      for (const bool is_last : {false, true}) {
        sync.begin_microbatch(is_last);
        backward(parameters, static_cast<double>(world.rank()));
        sync.end_microbatch();
      }
      sync.finish();
      for (const auto& [name, parameter] : parameters) {
        const at::Tensor& grad = parameter->stored().grad();
        ASSERT_EQ(grad.scalar_type(), GetParam().gradient) << name;
        const bool is_summed = !parameter->mesh().axes().empty();
        const double expected = is_summed ? kNumRanks * (kNumRanks - 1) : 2.0 * static_cast<double>(world.rank());
        EXPECT_TRUE(at::equal(grad, at::full_like(grad, expected))) << name;
      }
      sync.clear();
      for (const auto& [name, parameter] : parameters) EXPECT_FALSE(parameter->stored().grad().defined()) << name;
    }
  });
}

// In such a step the reference's reduction never became ready.
TEST(BucketedReduction, Tolerates_parameters_that_a_rank_did_not_use) {
  run_ranks(RankBackend::kThreads, kNumRanks, [](World& world) {
    const NamedParameters parameters = make_parameters(world, at::kFloat, {true, true});
    BucketedReduction sync(parameters, {});
    sync.begin_microbatch(/*is_last=*/true);
    if (world.rank() == 1) {
      backward(parameters, 1.0);
    } else {
      backward({parameters.front()}, 1.0);
    }
    sync.end_microbatch();
    sync.finish();
    EXPECT_EQ(parameters[0].second->stored().grad().max().item<double>(), kNumRanks);
    EXPECT_EQ(parameters[1].second->stored().grad().max().item<double>(), 1.0);
  });
}

TEST(BucketedReduction, Leaves_parameters_of_one_rank_to_autograd) {
  const NamedParameters parameters = {
      {"p", std::make_shared<Parameter>(ParameterSpec{.shape = {2}, .init = init::ones()})}};
  parameters[0].second->materialize(at::kCPU);
  parameters[0].second->reset({});
  BucketedReduction sync(parameters, {});
  EXPECT_EQ(sync.num_buckets(), 0);
  sync.begin_microbatch(true);
  backward(parameters, 3.0);
  sync.end_microbatch();
  sync.finish();
  EXPECT_TRUE(at::equal(parameters[0].second->stored().grad(), at::full({2}, 3.0)));
}

TEST(BucketedReduction, Sums_in_float32_unless_told_otherwise) {
  run_ranks(RankBackend::kThreads, kNumRanks, [](World& world) {
    const NamedParameters parameters = make_parameters(world, at::kBFloat16, {true, false});
    BucketedReduction sync(parameters, {});
    sync.begin_microbatch(/*is_last=*/false);
    backward(parameters, 256.0);
    sync.end_microbatch();
    sync.begin_microbatch(/*is_last=*/true);
    backward(parameters, 1.0);  // half of bfloat16's resolution at this value
    sync.end_microbatch();
    sync.finish();
    EXPECT_EQ(parameters[0].second->stored().grad().max().item<double>(), kNumRanks * 257.0);
    EXPECT_EQ(parameters[1].second->stored().grad().max().item<double>(), 257.0);
  });
}

// An optimiser must see the same parameters on every layout, therefore also on one rank.
TEST(BucketedReduction, Gives_zeros_to_parameters_without_a_gradient) {
  run_ranks(RankBackend::kThreads, kNumRanks, [](World& world) {
    const NamedParameters parameters = make_parameters(world, at::kFloat, {true, true, false, false});
    BucketedReduction sync(parameters, {});
    sync.begin_microbatch(/*is_last=*/true);
    backward({parameters[0], parameters[2]}, 1.0);
    sync.end_microbatch();
    sync.finish();
    for (const std::size_t unused : {1U, 3U}) {
      const at::Tensor& grad = parameters[unused].second->stored().grad();
      ASSERT_TRUE(grad.defined()) << unused;
      EXPECT_TRUE(at::equal(grad, at::zeros_like(grad))) << unused;
    }
  });
}

TEST(BucketedReduction, Leaves_the_parameters_to_autograd_when_it_goes) {
  run_ranks(RankBackend::kThreads, kNumRanks, [](World& world) {
    const NamedParameters parameters = make_parameters(world, at::kFloat, {true, false});
    const BucketedReductionConfig config{.keeps_memory = true};
    std::optional<BucketedReduction> first(std::in_place, parameters, config);
    EXPECT_THAT([&] { BucketedReduction(parameters, config); },
                ThrowsMessage<StateError>(HasSubstr("expected one owner of a parameter's gradient")));
    first.reset();
    std::optional<BucketedReduction> second(std::in_place, parameters, config);
    second->begin_microbatch(/*is_last=*/true);
    backward(parameters, 1.0);
    second->end_microbatch();
    second->finish();
    EXPECT_EQ(parameters[0].second->stored().grad().max().item<double>(), kNumRanks);
    second->clear();
    second.reset();
    backward(parameters, 3.0);
    for (const auto& [name, parameter] : parameters) {
      EXPECT_TRUE(at::equal(parameter->stored().grad(), at::full(parameter->stored().sizes(), 3.0F))) << name;
    }
  });
}

TEST(BucketedReduction, Sums_several_backwards_of_the_last_microbatch_on_cpus) {
  run_ranks(RankBackend::kThreads, kNumRanks, [](World& world) {
    const NamedParameters parameters = make_parameters(world, at::kFloat, {true, true});
    BucketedReduction sync(parameters, {});
    sync.begin_microbatch(/*is_last=*/true);
    for (int i = 0; i < 3; ++i) backward(parameters, 1.0);
    sync.end_microbatch();
    sync.finish();
    EXPECT_EQ(parameters[0].second->stored().grad().max().item<double>(), 3.0 * kNumRanks);
  });
}

// On GPUs reductions overlap with the backward.
class SumsOverGpus : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Nccl, SumsOverGpus, ::testing::Values(2));

TEST_P(SumsOverGpus, Refuse_gradients_that_come_after_them) {
  if (!has_gpus(GetParam())) GTEST_SKIP() << "needs " << GetParam() << " GPUs";
  run_ranks(RankBackend::kNccl, GetParam(), [](World& world) {
    const NamedParameters parameters = make_parameters(world, at::kFloat, {true});
    BucketedReduction sync(parameters, {});
    sync.begin_microbatch(/*is_last=*/true);
    backward(parameters, 1.0);
    EXPECT_THAT([&] { backward(parameters, 1.0); },
                ThrowsMessage<StateError>(HasSubstr("got another gradient of p0 after the sum over ranks")));
    sync.abandon();
    sync.begin_microbatch(/*is_last=*/true);
    backward(parameters, 2.0);
    sync.end_microbatch();
    sync.finish();
    EXPECT_EQ(parameters[0].second->stored().grad().max().item<double>(), 4.0);
  });
}

TEST(BucketedReduction, Names_a_parameter_whose_gradient_cannot_be_summed) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const DeviceMesh mesh("m", {{"dp", 2}}, borrowed(world));
    auto parameter = std::make_shared<Parameter>(ParameterSpec{.shape = {2}, .init = init::ones()});
    parameter->place(mesh, "dp", Replicate{}, Partial{ReduceOp::kMax});
    parameter->materialize(at::kCPU);
    EXPECT_THAT(
        [&] {
          BucketedReduction({{"gate", parameter}}, {});
        },
        ThrowsMessage<ConfigError>(HasSubstr("partial(max) for gate over axis 'dp'")));
  });
}

TEST(BucketedReduction, Keeps_the_places_of_all_gradients_if_asked) {
  run_ranks(RankBackend::kThreads, kNumRanks, [](World& world) {
    const NamedParameters parameters = make_parameters(world, at::kFloat, {true, false, true});
    BucketedReduction sync(parameters, {.keeps_memory = true});
    std::vector<const void*> places;
    for (int step = 0; step < 3; ++step) {
      for (const bool is_last : {false, true}) {
        sync.begin_microbatch(is_last);
        backward(parameters, 1.0);
        sync.end_microbatch();
      }
      sync.finish();
      std::vector<const void*> now;
      for (const auto& [name, parameter] : parameters) {
        const double expected = parameter->mesh().axes().empty() ? 2.0 : 2.0 * kNumRanks;
        EXPECT_TRUE(at::equal(parameter->stored().grad(), at::full(parameter->stored().sizes(), expected))) << name;
        now.push_back(parameter->stored().grad().const_data_ptr());
      }
      EXPECT_TRUE(places.empty() || places == now);
      places = now;
      sync.clear();
    }
  });
}

TEST(BucketedReduction, Has_no_memory_between_steps) {
  run_ranks(RankBackend::kThreads, kNumRanks, [](World& world) {
    const NamedParameters parameters = make_parameters(world, at::kBFloat16, {true, false, true});
    BucketedReduction sync(parameters, {});
    for (int step = 0; step < 2; ++step) {
      sync.begin_microbatch(/*is_last=*/true);
      backward(parameters, 1.0);
      sync.end_microbatch();
      sync.finish();
      std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memory;
      for (const auto& [name, parameter] : parameters) {
        memory.push_back(parameter->stored().grad().storage().getWeakStorageImpl());
      }
      sync.clear();
      for (const auto& gradients : memory) EXPECT_TRUE(gradients.expired());
    }
  });
}

TEST(BucketedReduction, Takes_anothers_word_for_which_gradients_have_values) {
  run_ranks(RankBackend::kThreads, kNumRanks, [](World& world) {
    const NamedParameters parameters = make_parameters(world, at::kFloat, {false, false});
    BucketedReduction sync(parameters, {.keeps_memory = true});
    const auto run = [&](const NamedParameters& used) {
      sync.begin_microbatch(/*is_last=*/true);
      backward(used, 1.0);
      sync.end_microbatch();
    };
    EXPECT_EQ(sync.received(), std::vector<bool>({false, false}));
    run({parameters.front()});
    const std::vector<bool> of_first = sync.received();
    EXPECT_EQ(std::ranges::count(of_first, true), 1);
    run(parameters);  // the second gradient was zeros until then
    sync.finish();
    EXPECT_EQ(parameters[0].second->stored().grad().max().item<float>(), 2);
    EXPECT_EQ(parameters[1].second->stored().grad().max().item<float>(), 1);
    sync.clear();
    sync.set_received(of_first);  // as if a graph had written it
    run(parameters);
    sync.finish();
    EXPECT_EQ(parameters[0].second->stored().grad().max().item<float>(), 3);
    EXPECT_EQ(parameters[1].second->stored().grad().max().item<float>(), 1);
  });
}

}  // namespace
}  // namespace d9d::test::bucketed_reduction_test
