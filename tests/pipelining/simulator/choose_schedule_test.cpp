#include "d9d/pipelining/simulator/choose_schedule.h"

#include <algorithm>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "d9d/base/check.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"
#include "d9d/pipelining/simulator/memory.h"

#include "tests/pipelining/random_pipelines.h"

namespace d9d::choose_schedule_test {
namespace {

using ::testing::HasSubstr;

std::string name_of(const ScheduleCandidate& candidate) { return schedule_of(candidate.schedule).name; }

// Four layers that differ, and numbers of microbatches that share one batch: half as many cost 1.9 times as much each.
ScheduleRequest uneven_request(std::uint32_t seed, std::int64_t num_ranks) {
  ScheduleRequest request{.num_ranks = num_ranks};
  const auto layers = test::drawn_costs(4, seed).stages;
  request.link = {.time = 0.05};
  double scale = 1;
  for (const std::int64_t count : {16, 8, 4}) {
    MicrobatchOption option{.count = count, .model = {.layers = layers}};
    for (auto& layer : option.model.layers) {
      for (double* cost : {&layer.forward, &layer.backward, &layer.backward_input, &layer.backward_weight})
        *cost *= scale;
      layer.activation_bytes *= 16.0 / static_cast<double>(count);
      layer.deferred_bytes *= 16.0 / static_cast<double>(count);
    }
    request.microbatches.push_back(option);
    scale *= 1.9;
  }
  return request;
}

struct Tried {
  double makespan;
  double peak;
};

// Tries every schedule, V and M; sums the costs of layers to those of stages itself.
std::vector<Tried> try_all(const ScheduleRequest& request) {
  std::vector<Tried> tried;
  for (const auto& option : request.microbatches) {
    for (std::int64_t v = 1; v * request.num_ranks <= 4; ++v) {
      std::vector<PipelineScheduleConfig> schedules = {LoopedBfsScheduleConfig{v}, OneFOneBScheduleConfig{v, false},
                                                       OneFOneBScheduleConfig{v, true}};
      if (v == 1) schedules.push_back(OneFOneBScheduleConfig{1, false, OneFOneBDepth::kClassic});
      if (v == 2) schedules.push_back(ZeroBubbleVScheduleConfig{});
      if (v == 2 && option.count >= 2 * request.num_ranks) schedules.push_back(DualPipeVScheduleConfig{});
      PipelineCosts costs{.link = request.link};
      const std::int64_t layers_per_stage = 4 / (v * request.num_ranks);
      for (std::int64_t first = 0; first < 4; first += layers_per_stage) {
        StageCosts sum = ModelCosts::kNoCosts;
        for (std::int64_t i = first; i < first + layers_per_stage; ++i) {
          const auto& layer = option.model.layers[static_cast<std::size_t>(i)];
          sum = {sum.forward + layer.forward,
                 sum.backward + layer.backward,
                 sum.backward_input + layer.backward_input,
                 sum.backward_weight + layer.backward_weight,
                 sum.activation_bytes + layer.activation_bytes,
                 sum.deferred_bytes + layer.deferred_bytes,
                 sum.resident_bytes + layer.resident_bytes};
        }
        costs.stages.push_back(sum);
      }
      for (const auto& schedule : schedules) {
        const auto program = build_program(schedule_of(schedule), request.num_ranks, option.count, {.costs = costs});
        const auto run = simulate(program, {.costs = costs, .num_inbox_slots = 2});
        Tried one{.makespan = run.makespan, .peak = 0};
        for (std::int64_t rank = 0; rank < request.num_ranks; ++rank) {
          double bytes = peak_bytes(run, costs, rank);
          for (const StageIndex stage : program.stages.stages_of(rank)) bytes += costs_of(costs, stage).resident_bytes;
          one.peak = std::max(one.peak, bytes);
        }
        tried.push_back(one);
      }
    }
  }
  return tried;
}

TEST(ChooseSchedule, Is_as_short_as_the_best_of_all_on_uneven_models_with_and_without_a_bound) {
  int num_changed = 0;
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    auto request = uneven_request(seed, seed % 2 == 0 ? 2 : 4);
    const auto tried = try_all(request);
    const auto best_within = [&](double bound) {
      double best = std::numeric_limits<double>::infinity();
      for (const auto& one : tried) best = one.peak <= bound ? std::min(best, one.makespan) : best;
      return best;
    };
    const auto free = choose_schedule(request);
    EXPECT_LE(free.best.makespan, 1.02 * best_within(1e300)) << seed;
    request.max_bytes = 0.8 * free.best.peak_bytes;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& one : tried) least = std::min(least, one.peak);
    if (least > *request.max_bytes) {
      EXPECT_THROW((void)choose_schedule(request), ConfigError);
      continue;
    }
    const auto bounded = choose_schedule(request);
    EXPECT_LE(bounded.best.makespan, 1.02 * best_within(*request.max_bytes)) << seed;
    EXPECT_LE(bounded.best.peak_bytes, *request.max_bytes);
    ++num_changed;
  }
  EXPECT_GT(num_changed, 10);
}

// The request with the stages of its model as if they had been measured.
ScheduleRequest with_measured_stages(ScheduleRequest request, const std::vector<std::int64_t>& nums_of_stages) {
  for (auto& option : request.microbatches) {
    for (const std::int64_t count : nums_of_stages) option.stages[count] = stage_costs(option.model, count, 0, 0);
    option.model = {};
  }
  return request;
}

TEST(ChooseSchedule, Measured_stages_give_the_choice_of_the_model_that_they_are_of) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    auto request = uneven_request(seed, 2);
    for (const bool is_bounded : {false, true}) {
      const auto of_model = choose_schedule(request);
      const auto of_stages = choose_schedule(with_measured_stages(request, {2, 4}));
      EXPECT_EQ(name_of(of_stages.best), name_of(of_model.best)) << seed;
      EXPECT_EQ(of_stages.best.num_microbatches, of_model.best.num_microbatches) << seed;
      EXPECT_EQ(of_stages.best.makespan, of_model.best.makespan) << seed;
      EXPECT_EQ(of_stages.candidates.size(), of_model.candidates.size()) << seed;
      if (!is_bounded) request.max_bytes = 1.1 * of_model.best.peak_bytes;
    }
  }
}

TEST(ChooseSchedule, Takes_only_numbers_of_stages_that_were_measured) {
  const auto request = uneven_request(3, 2);
  for (const std::int64_t count : {2, 4}) {
    for (const auto& candidate : choose_schedule(with_measured_stages(request, {count})).candidates) {
      EXPECT_EQ(schedule_of(candidate.schedule).placement(2).num_stages(), count) << name_of(candidate);
    }
  }
  EXPECT_THROW((void)choose_schedule(with_measured_stages(request, {3})), ConfigError);
}

TEST(ChooseSchedule, Balances_measured_stages_by_their_layers_in_shares_of_what_was_measured) {
  const StageCosts layer, head{.forward = 2,
                               .backward = 4,
                               .backward_input = 2,
                               .backward_weight = 2,
                               .activation_bytes = 0,
                               .deferred_bytes = 0};
  ScheduleRequest request{.num_ranks = 4,
                          .microbatches = {{.count = 16, .model = {.layers = std::vector(14, layer), .post = head}}},
                          .schedules = {OneFOneBScheduleConfig{1, true}}};
  const auto of_model = choose_schedule(request);
  EXPECT_FALSE(choose_schedule(with_measured_stages(request, {4})).balanced.has_value());  // no costs of layers
  auto& option = request.microbatches.front();
  option.stages[4] = stage_costs(option.model, 4, 0, 0);
  for (StageCosts& stage : option.stages[4]) {  // half as fast as the model says
    for (double* cost : {&stage.forward, &stage.backward, &stage.backward_input, &stage.backward_weight}) *cost *= 2;
  }
  const auto of_stages = choose_schedule(request);
  ASSERT_TRUE(of_model.balanced && of_stages.balanced);
  EXPECT_EQ(of_stages.balanced->num_virtual_layers_post, of_model.balanced->num_virtual_layers_post);
  EXPECT_EQ(of_stages.best.makespan, 2 * of_model.best.makespan);
  EXPECT_EQ(of_stages.balanced->makespan, 2 * of_model.balanced->makespan);
}

TEST(ChooseSchedule, A_bound_on_memory_changes_the_choice_and_says_so) {
  // With activation checkpointing more memory is kept for W than for B.
  const StageCosts layer{.activation_bytes = 1, .deferred_bytes = 2};
  ScheduleRequest request{.num_ranks = 4, .microbatches = {{.count = 8, .model = {.layers = std::vector(16, layer)}}}};
  const auto free = choose_schedule(request);
  request.max_bytes = free.best.peak_bytes - 1;
  const auto bounded = choose_schedule(request);
  EXPECT_NE(name_of(bounded.best), name_of(free.best));
  EXPECT_GT(bounded.best.makespan, free.best.makespan);
  EXPECT_THAT(bounded.explanation, HasSubstr("more than fits"));
  request.max_bytes = 1;
  try {
    (void)choose_schedule(request);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected a schedule that keeps at most 1 bytes"));
  }
}

// A V's first rank has both ends of a model; in a loop the last rank has one of them.
TEST(ChooseSchedule, Does_not_lay_out_as_a_V_what_has_ends_too_large_for_one_rank) {
  const auto chosen = [](double of_end, double max_bytes) {
    const StageCosts layer{.resident_bytes = 1};
    StageCosts end = ModelCosts::kNoCosts;
    end.resident_bytes = of_end;
    return choose_schedule(
        {.num_ranks = 4,
         .microbatches = {{.count = 16, .model = {.pre = end, .layers = std::vector(8, layer), .post = end}}},
         .schedules = {ZeroBubbleVScheduleConfig{}, OneFOneBScheduleConfig{2, false}},
         .max_bytes = max_bytes});
  };
  const ScheduleChoice small = chosen(0, 20);
  EXPECT_EQ(name_of(small.best), "zero_bubble_v");
  EXPECT_EQ(small.best.peak_bytes, 8 + 2);  // microbatches, and two layers
  const ScheduleChoice fitting = chosen(100, 220);
  EXPECT_EQ(name_of(fitting.best), "zero_bubble_v");
  EXPECT_EQ(fitting.best.peak_bytes, 8 + 2 + 100 + 100);
  const ScheduleChoice large = chosen(100, 120);
  EXPECT_EQ(name_of(large.best), "1f1b, V = 2");
  EXPECT_EQ(large.best.peak_bytes, 11 + 2 + 100);
  EXPECT_GT(large.best.makespan, small.best.makespan);
}

TEST(ChooseSchedule, Says_which_virtual_layers_balance_a_heavy_head) {
  const StageCosts layer;
  const StageCosts head{.forward = 2,
                        .backward = 4,
                        .backward_input = 2,
                        .backward_weight = 2,
                        .activation_bytes = 0,
                        .deferred_bytes = 0};
  const auto choice =
      choose_schedule({.num_ranks = 4,
                       .microbatches = {{.count = 16, .model = {.layers = std::vector(14, layer), .post = head}}},
                       .schedules = {OneFOneBScheduleConfig{1, true}}});
  ASSERT_TRUE(choice.balanced.has_value());
  EXPECT_EQ(choice.balanced->num_virtual_layers_pre, 0);
  EXPECT_EQ(choice.balanced->num_virtual_layers_post, 1);  // 4 layers a stage, the last one 2 and the head
  EXPECT_EQ(choice.balanced->makespan, 3 * 4 * 16 + 4 * 3);
  EXPECT_THAT(choice.explanation, HasSubstr("num_virtual_layers_post = 1"));
}

TEST(ChooseSchedule, Refuses_what_no_schedule_can_run) {
  EXPECT_THROW((void)choose_schedule({.num_ranks = 4}), ConfigError);
  EXPECT_THROW((void)choose_schedule({.num_ranks = 4, .microbatches = {{.count = 8, .model = {.layers = {{}, {}}}}}}),
               ConfigError);
}

TEST(ChooseSchedule, One_rank_keeps_one_microbatch) {
  const auto choice = choose_schedule({.num_ranks = 1, .microbatches = {{.count = 8, .model = {.layers = {{}, {}}}}}});
  EXPECT_EQ(choice.best.peak_bytes, 2);
  EXPECT_EQ(choice.best.makespan, 2 * 3 * 8);
}

}  // namespace
}  // namespace d9d::choose_schedule_test
