// What plans of activations are measured for: the units of a stage, and the moments at which a rank keeps most.
#include "d9d/loop/measure/measured_plans.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "d9d/models/qwen3_moe/model.h"
#include "d9d/pipelining/program/live_microbatches.h"

#include "tests/support/decoder_families.h"

namespace d9d::measured_plans_test {
namespace {

ModulePtr<PreNormDecoder> decoder(std::int64_t num_dense) {
  const test::SmallDecoder sizes{.num_layers = 6, .num_dense_layers = num_dense};
  return test::decoder_family("qwen3_moe").make_small(sizes, {});
}

TEST(ActivationUnits, Are_the_layers_in_their_order) {
  const auto model = decoder(0);
  const std::vector<Module*> units = activation_units(*model);
  ASSERT_EQ(units.size(), 6U);
  for (std::size_t i = 0; i < units.size(); ++i) EXPECT_EQ(units[i], &*model->layers()[i]);
}

TEST(ActivationUnits, Are_alike_if_their_parameters_and_what_is_trained_of_them_are) {
  const auto model = decoder(/*num_dense=*/2);
  model->layers()[5]->set_requires_grad(false);
  const std::vector<AlikeUnits> kinds = alike_units(*model);
  std::vector<std::pair<std::string, std::size_t>> found;
  for (const AlikeUnits& kind : kinds) found.emplace_back(kind.name, kind.units.size());
  EXPECT_EQ(found,
            (std::vector<std::pair<std::string, std::size_t>>{{"layers.0", 2}, {"layers.2", 3}, {"layers.5", 1}}));
}

// Backward goes through frozen units behind a trained one, and not through those before.
TEST(ActivationUnits, That_are_frozen_are_alike_on_one_side_of_what_is_trained) {
  const auto model = decoder(0);
  for (const std::size_t frozen : {0, 1, 3, 5}) model->layers()[frozen]->set_requires_grad(false);
  std::vector<std::pair<std::string, std::size_t>> found;
  for (const AlikeUnits& kind : alike_units(*model)) found.emplace_back(kind.name, kind.units.size());
  EXPECT_EQ(found,
            (std::vector<std::pair<std::string, std::size_t>>{{"layers.0", 2}, {"layers.2", 2}, {"layers.3", 2}}));
}

struct Outer : Module {
  [[nodiscard]] std::vector<ActivationPlan> activation_plans() const override { return {{}, {Recompute::kAll}}; }
  const ModulePtr<PreNormDecoder> inner = register_module("inner", decoder(0));
};

TEST(ActivationUnits, Inside_a_unit_are_none) {
  const auto outer = make_module<Outer>();
  EXPECT_EQ(activation_units(*outer), std::vector<Module*>{&*outer});
}

TEST(GreatestMoments, Are_one_where_backward_is_whole) {
  constexpr std::int64_t kNumRanks = 4, kNumMicrobatches = 8;
  for (const PipelineScheduleConfig& config :
       {PipelineScheduleConfig(GPipeScheduleConfig{}), PipelineScheduleConfig(OneFOneBScheduleConfig{})}) {
    const PipelineProgram program = build_compute_program(schedule_of(config), kNumRanks, kNumMicrobatches);
    const std::vector<std::int64_t> live = peak_live_microbatches(program);
    for (std::int64_t rank = 0; rank < kNumRanks; ++rank) {
      EXPECT_EQ(greatest_moments(program, rank),
                (KeptMoments{{{.stage = {rank}, .for_backward = live[static_cast<std::size_t>(rank)]}}}));
    }
  }
}

// Of each action one keeps as much, and none of them as much as another.
TEST(GreatestMoments, Are_as_many_as_no_other_is_above) {
  const auto is_above = [](const std::vector<WaitingMicrobatches>& a, const std::vector<WaitingMicrobatches>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i].for_backward < b[i].for_backward || a[i].for_weights < b[i].for_weights) return false;
    }
    return true;
  };
  std::size_t most = 0;
  for (const PipelineScheduleConfig& config :
       {PipelineScheduleConfig(OneFOneBScheduleConfig{.zero_bubble = true}),
        PipelineScheduleConfig(OneFOneBScheduleConfig{.num_stages_per_rank = 2}),
        PipelineScheduleConfig(ZeroBubbleVScheduleConfig{}), PipelineScheduleConfig(DualPipeVScheduleConfig{})}) {
    const PipelineProgram program = build_compute_program(schedule_of(config), 4, 16);
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const KeptMoments greatest = greatest_moments(program, rank);
      most = std::max(most, greatest.size());
      for (const auto& moment : waiting_microbatches(program, rank)) {
        EXPECT_TRUE(std::ranges::any_of(greatest, [&](const auto& each) { return is_above(each, moment); }));
      }
      for (const auto& each : greatest) {
        EXPECT_EQ(std::ranges::count_if(greatest, [&](const auto& other) { return is_above(other, each); }), 1);
      }
    }
  }
  EXPECT_GT(most, 1U);
}

}  // namespace
}  // namespace d9d::measured_plans_test
