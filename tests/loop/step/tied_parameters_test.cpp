// Parameters that several stages have under one name, over ranks and on one rank.
#include "d9d/loop/step/tied_parameters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/normalization/rms_norm.h"
#include "d9d/loop/step/local_stages.h"

#include "tests/support/ranks.h"

namespace d9d::test::tied_parameters_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A stage with one norm for each of the names.
class Stage : public Module {
 public:
  explicit Stage(const std::vector<std::string>& names, std::int64_t size = 4) {
    for (const std::string& name : names) register_module<RMSNorm>(name, RMSNormConfig{.hidden_size = size});
  }
};

std::shared_ptr<Module> make_stage(const std::vector<std::string>& names, std::int64_t size = 4) {
  const auto stage = make_module<Stage>(names, size).shared();
  stage->materialize(at::kCPU);
  stage->reset_parameters(/*base_seed=*/1);
  return stage;
}

void set_gradients(const Module& stage, double value) {
  for (const auto& [name, parameter] : stage.named_parameters()) {
    parameter->stored().mutable_grad() = at::full_like(parameter->stored(), value);
  }
}

double gradient_of(const Module& stage, const std::string& name) {
  for (const auto& [each, parameter] : stage.named_parameters()) {
    if (each == name) return parameter->stored().grad()[0].item<double>();
  }
  return -1;
}

void on_pipeline(std::int64_t num_ranks, const std::function<void(const DistContext&, std::int64_t rank)>& program) {
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    program(DistContext({.mesh = {.pipeline_parallel = num_ranks},
                         .world = borrowed(world),
                         .local_rank = world.rank(),
                         .log_sink = [](std::string_view) {}}),
            world.rank());
  });
}

TEST(TiedParameters, Sum_their_gradients_over_the_ranks_that_have_them_and_count_on_the_first) {
  on_pipeline(3, [](const DistContext& context, std::int64_t rank) {
    const bool has_tied = rank != 1;
    const auto stage = make_stage(has_tied ? std::vector<std::string>{"tied", cat("own", rank)}
                                           : std::vector<std::string>{cat("own", rank)});
    const TiedParameters tied(context, {stage});
    set_gradients(*stage, static_cast<double>(rank + 1));
    tied.sum_gradients();
    EXPECT_EQ(gradient_of(*stage, cat("own", rank, ".weight")), static_cast<double>(rank + 1));
    EXPECT_EQ(gradient_of(*stage, "tied.weight"), has_tied ? 1.0 + 3.0 : -1.0);
    for (const auto& [name, parameter] : stage->named_parameters()) {
      EXPECT_EQ(tied.is_counted_before(parameter), rank == 2 && name == "tied.weight") << name;
    }
    EXPECT_EQ(num_parameters(*stage, context).all, 4 * 4) << "tied, own0, own1 and own2";
  });
}

TEST(TiedParameters, Of_two_stages_of_a_rank_are_one_parameter_and_a_copy) {
  on_pipeline(1, [](const DistContext& context, std::int64_t) {
    const std::vector<std::shared_ptr<Module>> stages = {make_stage({"tied", "first"}), make_stage({"last", "tied"})};
    std::vector<std::string> names;
    const auto all = local_stages(stages)->named_parameters();
    for (const auto& [name, parameter] : all) names.push_back(name);
    EXPECT_THAT(names, ElementsAre("tied.weight", "first.weight", "last.weight"));
    const TiedParameters tied(context, stages);
    {
      const at::NoGradGuard no_grad;
      all.front().second->stored().fill_(7);
    }
    tied.update_copies();
    EXPECT_TRUE(at::equal(stages[1]->state_dict().at("tied.weight"), at::full({4}, 7.0)));
    set_gradients(*stages[0], 1);
    set_gradients(*stages[1], 10);
    tied.sum_gradients();
    EXPECT_EQ(gradient_of(*stages[0], "tied.weight"), 11);
    EXPECT_EQ(gradient_of(*stages[1], "last.weight"), 10);
  });
}

// As an event handler does that computes losses by itself.
TEST(TiedParameters, Let_several_forwards_outside_of_a_step_precede_their_backward) {
  struct Head : Module {
    at::Tensor forward(const at::Tensor& x) { return norm(x); }
    const ModulePtr<RMSNorm> norm = register_module<RMSNorm>("tied", RMSNormConfig{.hidden_size = 4});
  };
  on_pipeline(1, [](const DistContext& context, std::int64_t) {
    const auto head = make_module<Head>();
    head->materialize(at::kCPU);
    head->reset_parameters(/*base_seed=*/1);
    const std::vector<std::shared_ptr<Module>> stages = {make_stage({"tied"}), head.shared()};
    const ParameterPtr first = stages[0]->named_parameters().front().second;
    const TiedParameters tied(context, stages);
    const at::Tensor x = at::arange(1, 9, at::kFloat).view({2, 4});
    const at::Tensor y = head(x);
    (y + head(2 * x)).sum().backward();
    {
      const at::NoGradGuard no_grad;
      first->stored().fill_(7);
    }
    EXPECT_TRUE(at::allclose(head(x), 7 * y));  // the reset weight was 1
  });
}

TEST(TiedParameters, Of_other_shapes_or_trained_on_some_stages_only_are_refused) {
  const auto expect_refused = [](const std::function<std::shared_ptr<Module>(std::int64_t rank)>& make,
                                 const std::string& first, const std::string& second) {
    on_pipeline(2, [&](const DistContext& context, std::int64_t rank) {
      const std::vector<std::shared_ptr<Module>> stages = {make(rank)};
      EXPECT_THAT([&] { (void)TiedParameters(context, stages); },
                  ThrowsMessage<ConfigError>(AllOf(HasSubstr("tied.weight"), HasSubstr(first), HasSubstr(second))));
    });
  };
  expect_refused([](std::int64_t rank) { return make_stage({"tied"}, 4 + rank); }, "[4]", "[5]");
  expect_refused(
      [](std::int64_t rank) {
        const auto stage = make_stage({"tied"});
        stage->set_requires_grad(rank == 0);
        return stage;
      },
      "trained", "frozen");
}

}  // namespace
}  // namespace d9d::test::tied_parameters_test
