// The choice of auto for given costs, compared with all schedules and numbers of stages per rank.
#include "d9d/loop/measure/auto_schedule.h"

#include <algorithm>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"
#include "d9d/pipelining/simulator/memory.h"

namespace d9d::auto_schedule_test {
namespace {

using ::testing::HasSubstr;

std::string name_of(const ScheduleCandidate& candidate) { return schedule_of(candidate.schedule).name; }

// Four layers with different costs, on 2 or 4 ranks: as 2 stages of two layers, and as 4 stages.
MeasuredPipeline drawn(std::uint32_t seed, std::int64_t num_ranks, std::int64_t num_microbatches) {
  std::mt19937 random(seed);
  const auto draw = [&] { return static_cast<double>(1 + random() % 256) / 64.0; };
  std::vector<StageCosts> four;
  for (int i = 0; i < 4; ++i) {
    const double input = draw(), weight = draw();
    four.push_back({.forward = draw(),
                    .backward = 0.95 * (input + weight),
                    .backward_input = input,
                    .backward_weight = weight,
                    .activation_bytes = draw(),
                    .deferred_bytes = draw(),
                    .resident_bytes = draw()});
  }
  MeasuredPipeline measured{.num_microbatches = num_microbatches, .link = {.latency = 0.02, .time = 0.05}};
  measured.stages[4] = four;
  if (num_ranks == 2) {
    for (std::size_t i = 0; i < 4; i += 2) {
      const StageCosts &a = four[i], &b = four[i + 1];
      measured.stages[2].push_back({.forward = a.forward + b.forward,
                                    .backward = a.backward + b.backward,
                                    .backward_input = a.backward_input + b.backward_input,
                                    .backward_weight = a.backward_weight + b.backward_weight,
                                    .activation_bytes = a.activation_bytes + b.activation_bytes,
                                    .deferred_bytes = a.deferred_bytes + b.deferred_bytes,
                                    .resident_bytes = a.resident_bytes + b.resident_bytes});
    }
  }
  return measured;
}

struct Tried {
  double makespan = 0;
  double peak = 0;
};

// Tries every schedule that can train with the measured numbers of stages.
std::vector<Tried> try_all(const MeasuredPipeline& measured, std::int64_t num_ranks) {
  std::vector<Tried> tried;
  for (const auto& [num_stages, stages] : measured.stages) {
    const std::int64_t v = num_stages / num_ranks;
    std::vector<PipelineScheduleConfig> schedules = {LoopedBfsScheduleConfig{v}, OneFOneBScheduleConfig{v, false},
                                                     OneFOneBScheduleConfig{v, true}};
    if (v == 1) schedules.push_back(GPipeScheduleConfig{});
    if (v == 1) schedules.push_back(OneFOneBScheduleConfig{1, false, OneFOneBDepth::kClassic});
    if (v == 2) schedules.push_back(ZeroBubbleVScheduleConfig{});
    if (v == 2 && measured.num_microbatches >= 2 * num_ranks) schedules.push_back(DualPipeVScheduleConfig{});
    const PipelineCosts costs{.stages = stages, .link = measured.link};
    for (const auto& schedule : schedules) {
      const auto program = build_program(schedule_of(schedule), num_ranks, measured.num_microbatches, {.costs = costs});
      const auto run = simulate(program, {.costs = costs, .num_inbox_slots = 2});
      Tried one{.makespan = run.makespan};
      for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
        double bytes = peak_bytes(run, costs, rank);
        for (const StageIndex stage : program.stages.stages_of(rank)) bytes += costs_of(costs, stage).resident_bytes;
        one.peak = std::max(one.peak, bytes);
      }
      tried.push_back(one);
    }
  }
  return tried;
}

double shortest_within(const std::vector<Tried>& tried, double bound) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const Tried& one : tried) shortest = one.peak <= bound ? std::min(shortest, one.makespan) : shortest;
  return shortest;
}

TEST(AutoChoice, Is_within_two_percent_of_the_shortest_of_all_and_a_bound_on_memory_changes_it) {
  constexpr double kTwoPercent = 1.02;
  int num_changed = 0;
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    for (const std::int64_t num_ranks : {2, 4}) {
      for (const std::int64_t num_microbatches : {3, 8, 16}) {
        SCOPED_TRACE(cat("seed ", seed, ", P = ", num_ranks, ", M = ", num_microbatches));
        const MeasuredPipeline measured = drawn(seed, num_ranks, num_microbatches);
        const auto tried = try_all(measured, num_ranks);
        const auto free = choose_schedule(AutoScheduleConfig{}, num_ranks, measured);
        EXPECT_LE(free.best.makespan, kTwoPercent * shortest_within(tried, std::numeric_limits<double>::infinity()));
        // A whole number of bytes below what the choice keeps: costs are multiples of 1/64.
        const auto bound = static_cast<std::int64_t>(std::ceil(free.best.peak_bytes)) - 1;
        const double shortest = shortest_within(tried, static_cast<double>(bound));
        const AutoScheduleConfig bounded{.max_bytes = bound};
        if (shortest == std::numeric_limits<double>::infinity()) {
          EXPECT_THROW((void)choose_schedule(bounded, num_ranks, measured), ConfigError);
          continue;
        }
        const auto choice = choose_schedule(bounded, num_ranks, measured);
        EXPECT_LE(choice.best.makespan, kTwoPercent * shortest);
        EXPECT_LE(choice.best.peak_bytes, static_cast<double>(bound));
        EXPECT_NE(name_of(choice.best), name_of(free.best));
        ++num_changed;
      }
    }
  }
  EXPECT_GT(num_changed, 20);
}

TEST(AutoChoice, Takes_the_bound_of_the_device_unless_one_is_configured) {
  MeasuredPipeline measured = drawn(1, 2, 8);
  const auto free = choose_schedule(AutoScheduleConfig{}, 2, measured);
  measured.device_bytes = std::ranges::min(try_all(measured, 2), {}, &Tried::peak).peak;
  EXPECT_LT(*measured.device_bytes, free.best.peak_bytes);
  EXPECT_EQ(choose_schedule(AutoScheduleConfig{}, 2, measured).best.peak_bytes, *measured.device_bytes);
  EXPECT_EQ(name_of(choose_schedule({.max_bytes = 1000}, 2, measured).best), name_of(free.best));
  measured.device_bytes = 0.5;
  try {
    (void)choose_schedule(AutoScheduleConfig{}, 2, measured);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected a schedule that keeps at most 0.5 bytes on a rank, got at least "));
  }
}

// Both schedules have the same number of stages, so the overlap of composed computations decides.
TEST(AutoChoice, Is_dual_pipe_v_where_composed_computations_hide_much) {
  MeasuredPipeline measured{.num_microbatches = 8, .stages = {{4, std::vector(4, StageCosts{})}}};
  const AutoScheduleConfig config{.schedules = {ScheduleKind::kZeroBubbleV, ScheduleKind::kDualPipeV}};
  EXPECT_EQ(name_of(choose_schedule(config, 2, measured).best), "zero_bubble_v");
  measured.composed_overlap = 0.3;
  EXPECT_EQ(name_of(choose_schedule(config, 2, measured).best), "dual_pipe_v");
}

TEST(AutoChoice, Is_among_the_schedules_that_the_configuration_names) {
  const MeasuredPipeline measured = drawn(2, 2, 8);
  const auto names = [&](const AutoScheduleConfig& config) {
    std::vector<std::string> all;
    for (const auto& candidate : choose_schedule(config, 2, measured).candidates) all.push_back(name_of(candidate));
    std::ranges::sort(all);
    return all;
  };
  EXPECT_EQ(names({.schedules = {ScheduleKind::kZeroBubbleV}}), std::vector<std::string>{"zero_bubble_v"});
  EXPECT_EQ(names({.max_stages_per_rank = 1, .schedules = {ScheduleKind::kGPipe, ScheduleKind::kZeroBubbleV}}),
            std::vector<std::string>{"gpipe"});
  EXPECT_THROW((void)names({.max_stages_per_rank = 1, .schedules = {ScheduleKind::kDualPipeV}}), ConfigError);
}

TEST(AutoChoice, Says_which_virtual_layers_balance_a_heavy_head_of_a_model_that_says_its_layers) {
  const StageCosts layer{.backward = 2}, head{.forward = 2,
                                              .backward = 4,
                                              .backward_input = 2,
                                              .backward_weight = 2,
                                              .activation_bytes = 0,
                                              .deferred_bytes = 0};
  const ModelCosts model{.layers = std::vector(14, layer), .post = head};
  MeasuredPipeline measured{.num_microbatches = 16, .stages = {{4, stage_costs(model, 4, 0, 0)}}};
  const AutoScheduleConfig config{.max_stages_per_rank = 1, .schedules = {ScheduleKind::kOneFOneB}};
  EXPECT_FALSE(choose_schedule(config, 4, measured).balanced.has_value());
  measured.layers = LayerDistribution{.num_layers = 14};
  const auto choice = choose_schedule(config, 4, measured);
  ASSERT_TRUE(choice.balanced.has_value());
  EXPECT_EQ(choice.balanced->num_virtual_layers_post, 1);
  EXPECT_THAT(choice.explanation, HasSubstr("With num_virtual_layers_pre = 0 and num_virtual_layers_post = 1"));
}

TEST(MeasuredPipeline, Takes_the_largest_costs_of_replicas_and_the_least_memory) {
  const auto measurement = [](std::int64_t stage, double cost, double free, double link) {
    return RankMeasurement{
        .num_microbatches = stage + 3,
        .stages = {{.num_stages = 2, .stage = stage, .costs = {cost, 2, 3, 4, 5, 6 * cost, 7 * cost}}},
        .link = {.latency = link, .time = 2 * link},
        .composed_overlap = 0.01 * free,
        .device_bytes = free};
  };
  const MeasuredPipeline all = merged(
      {measurement(0, 1, 50, 0.1), measurement(0, 2, 40, 0.3), measurement(1, 7, 60, 0), measurement(1, 6, 70, 0)});
  EXPECT_EQ(all.num_microbatches, 4);
  EXPECT_EQ(all.stages.at(2)[0].forward, 2);
  EXPECT_EQ(all.stages.at(2)[0].deferred_bytes, 12);
  EXPECT_EQ(all.stages.at(2)[0].resident_bytes, 14);
  EXPECT_EQ(all.stages.at(2)[1].forward, 7);
  EXPECT_EQ(all.stages.at(2)[1].backward, 2);
  EXPECT_EQ(all.device_bytes, 40);
  EXPECT_EQ(all.composed_overlap, 0.4);
  EXPECT_EQ(all.link.latency, 0.3);
  EXPECT_EQ(all.link.time, 0.6);
}

}  // namespace
}  // namespace d9d::auto_schedule_test
