#include "d9d/pipelining/simulator/simulate.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/live_microbatches.h"
#include "d9d/pipelining/program/validate.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

#include "tests/pipelining/golden_schedules.h"
#include "tests/pipelining/random_pipelines.h"

namespace d9d::simulate_test {
namespace {

// Sums of at most a few thousand costs in double.
constexpr double kRounding = 1e-9;

struct Row {
  const char* schedule;
  double makespan;          // computed in the order of Python d9d, with free messages
  double one_channel;       // the same, with the messages of Python d9d in one channel a rank
  double rendezvous;        // with the messages of insert_messages() in one channel a rank
  std::int64_t peak_rank0;  // live microbatches of the first rank
};

// Measured on Python d9d 0.16: P, M, rows.
struct Table {
  std::int64_t num_ranks;
  std::int64_t num_microbatches;
  std::vector<Row> rows;
};

const std::vector<Table>& tables() {
  static const std::vector<Table> kTables = {{4,
                                              8,
                                              {{"gpipe", 33, 33, 33, 8},
                                               {"looped_bfs V=2", 57, 73, 57, 16},
                                               {"looped_bfs V=4", 105, 153, 105, 32},
                                               {"1f1b V=1", 33, 33, 33, 7},
                                               {"1f1b V=1 zb", 27, 27, 27, 4},
                                               {"1f1b V=2", 57, 67, 57, 11},
                                               {"1f1b V=2 zb", 51, 59, 51, 8},
                                               {"1f1b V=4 zb", 99, 123, 99, 16},
                                               {"zero_bubble_v", 51, 55, 51, 8},
                                               {"dual_pipe_v", 51, 68, 54, 9}}},
                                             {8,
                                              16,
                                              {{"gpipe", 69, 69, 69, 16},
                                               {"looped_bfs V=2", 117, 213, 117, 32},
                                               {"looped_bfs V=4", 213, 501, 213, 64},
                                               {"1f1b V=1", 69, 69, 69, 15},
                                               {"1f1b V=1 zb", 55, 55, 55, 8},
                                               {"1f1b V=2", 117, 168, 117, 23},
                                               {"1f1b V=2 zb", 103, 151, 103, 16},
                                               {"1f1b V=4 zb", 199, 343, 199, 32},
                                               {"zero_bubble_v", 103, 115, 103, 16},
                                               {"dual_pipe_v", 103, 148, 110, 17}}},
                                             {8,
                                              32,
                                              {{"gpipe", 117, 117, 117, 32},
                                               {"looped_bfs V=2", 213, 405, 213, 64},
                                               {"looped_bfs V=4", 405, 981, 405, 128},
                                               {"1f1b V=1", 117, 117, 117, 15},
                                               {"1f1b V=1 zb", 103, 103, 103, 8},
                                               {"1f1b V=2", 213, 264, 213, 23},
                                               {"1f1b V=2 zb", 199, 247, 199, 16},
                                               {"1f1b V=4 zb", 391, 535, 391, 32},
                                               {"zero_bubble_v", 199, 211, 199, 16},
                                               {"dual_pipe_v", 199, 292, 206, 17}}}};
  return kTables;
}

// The bubble fraction that the table implies for unit costs, by its makespan and the time of computation.
double expected_idle(const Row& row, double busy) { return 1 - busy / row.makespan; }

TEST(Simulate, Unit_costs_give_the_makespans_bubbles_and_peaks_of_the_table) {
  for (const auto& [num_ranks, num_microbatches, rows] : tables()) {
    for (const auto& row : rows) {
      const auto program = test::golden_computations(row.schedule, num_ranks, num_microbatches);
      const double busy = 3.0 * static_cast<double>(program.stages.num_stages() / num_ranks * num_microbatches);
      for (const auto num_slots : {std::optional<std::int64_t>(), std::optional<std::int64_t>(2)}) {
        const Simulation run = simulate(program, {.num_inbox_slots = num_slots});
        EXPECT_EQ(run.makespan, row.makespan) << row.schedule;
        EXPECT_NEAR(run.bubble_fraction(), expected_idle(row, busy), kRounding) << row.schedule;
      }
      EXPECT_EQ(peak_live_microbatches(program).front(), row.peak_rank0) << row.schedule;
    }
  }
}

TEST(Simulate, One_channel_a_rank_gives_the_makespans_of_the_table) {
  constexpr SimulationOptions kOneChannel{.channels = MessageChannels::kOneARank};
  for (const auto& [num_ranks, num_microbatches, rows] : tables()) {
    for (const auto& row : rows) {
      const auto program = test::golden_computations(row.schedule, num_ranks, num_microbatches);
      EXPECT_EQ(simulate(place_messages_by_sweep(program), kOneChannel).makespan, row.one_channel) << row.schedule;
      EXPECT_EQ(simulate(insert_messages(program, {.num_inbox_slots = 0}), kOneChannel).makespan, row.rendezvous)
          << row.schedule;
    }
  }
}

TEST(Simulate, Bubbles_of_equal_stages_have_closed_forms) {
  const double forward = 1.25;
  const double input = 1.5;
  const double weight = 0.75;
  for (std::int64_t num_ranks = 1; num_ranks <= 6; ++num_ranks) {
    for (const std::int64_t num_stages_per_rank : {1, 2, 3}) {
      const std::int64_t num_microbatches = 3 * num_ranks;
      const PipelineCosts costs{
          .stages = {
              {.forward = forward, .backward = input + weight, .backward_input = input, .backward_weight = weight}}};
      const auto idle = [&](const PipelineScheduleConfig& config) {
        return simulate(build_program(schedule_of(config), num_ranks, num_microbatches), {.costs = costs})
            .bubble_fraction();
      };
      const auto p = static_cast<double>(num_ranks);
      const auto m = static_cast<double>(num_microbatches);
      const auto v = static_cast<double>(num_stages_per_rank);
      EXPECT_NEAR(idle(GPipeScheduleConfig{}), (p - 1) / (m + p - 1), kRounding);
      EXPECT_NEAR(idle(InferenceScheduleConfig{}), (p - 1) / (m + p - 1), kRounding);
      EXPECT_NEAR(idle(LoopedBfsScheduleConfig{num_stages_per_rank}), (p - 1) / (v * m + p - 1), kRounding);
      EXPECT_NEAR(idle(OneFOneBScheduleConfig{num_stages_per_rank, false}), (p - 1) / (v * m + p - 1), kRounding);
      EXPECT_NEAR(idle(OneFOneBScheduleConfig{1, false, OneFOneBDepth::kClassic}), (p - 1) / (m + p - 1), kRounding);
    }
  }
}

TEST(Simulate, Zero_bubble_schedules_wait_only_while_the_pipeline_fills) {
  for (std::int64_t num_ranks = 2; num_ranks <= 6; ++num_ranks) {
    const std::int64_t num_microbatches = 4 * num_ranks;
    const auto makespan = [&](const PipelineScheduleConfig& config) {
      return simulate(build_program(schedule_of(config), num_ranks, num_microbatches)).makespan;
    };
    const auto fill = static_cast<double>(num_ranks - 1);
    const auto m = static_cast<double>(num_microbatches);
    EXPECT_EQ(makespan(OneFOneBScheduleConfig{1, true}), 3 * m + fill);
    EXPECT_EQ(makespan(OneFOneBScheduleConfig{2, true}), 6 * m + fill);
    EXPECT_EQ(makespan(ZeroBubbleVScheduleConfig{}), 6 * m + fill);
    EXPECT_EQ(makespan(DualPipeVScheduleConfig{}), 6 * m + fill);
  }
}

// Computes times by relaxation: applies every constraint to all computations until no time changes.
double relaxed_makespan(const PipelineProgram& program, const PipelineCosts& costs) {
  const std::int64_t num_stages = program.stages.num_stages();
  std::map<Transfer, double> made;
  std::map<Transfer, double> arrived;
  double makespan = 0;
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    const auto raise = [&](std::map<Transfer, double>& times, const Transfer& transfer, double time) {
      const auto [place, is_new] = times.emplace(transfer, time);
      has_moved |= is_new || place->second < time;
      place->second = std::max(place->second, time);
    };
    std::map<DirectedLink, double> link_free;
    for (const auto& rank : program.ranks) {
      double now = 0;
      for (const auto& action : rank) {
        for (const auto& part : compute_parts(action)) {
          const auto input = input_of(part, num_stages);
          if (input) now = std::max(now, link_of(*input, program.stages) ? arrived[*input] : made[*input]);
          now += duration_of(costs, part);
          const auto output = output_of(part, num_stages);
          if (!output) continue;
          raise(made, *output, now);
          if (const auto link = link_of(*output, program.stages)) {
            const LinkCosts& link_costs = costs_of(costs, *link);
            link_free[*link] = std::max(link_free[*link], made[*output]) + link_costs.time;
            raise(arrived, *output, link_free[*link] + link_costs.latency);
          }
        }
      }
      makespan = std::max(makespan, now);
    }
  }
  return makespan;
}

TEST(Simulate, Equals_a_relaxation_of_all_constraints_for_random_costs) {
  EXPECT_TRUE(rc::check([] {
    const auto pipeline = *test::random_pipeline();
    const auto costs = *test::random_costs(pipeline.stages.num_stages());
    const double expected = relaxed_makespan(pipeline, costs);
    RC_ASSERT(std::abs(simulate(pipeline, {.costs = costs}).makespan - expected) <= kRounding * expected);
  }));
}

TEST(Simulate, Our_placement_is_never_slower_than_the_sweep) {
  std::uint32_t seed = 0;
  for (const auto& golden : test::golden_configurations()) {
    const auto program = test::golden_computations(golden.schedule, golden.num_ranks, golden.num_microbatches);
    const auto sweep = place_messages_by_sweep(program);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const auto costs = test::drawn_costs(program.stages.num_stages(), ++seed);
      for (const auto num_slots :
           {std::optional<std::int64_t>(), std::optional<std::int64_t>(1), std::optional<std::int64_t>(2)}) {
        const SimulationOptions options{.costs = costs, .num_inbox_slots = num_slots};
        const double of_sweep = simulate(sweep, options).makespan;
        for (const auto& known : {costs, PipelineCosts{}}) {  // real costs may differ from the expected ones
          const auto ours = insert_messages(program, {.num_inbox_slots = num_slots, .costs = known});
          EXPECT_LE(simulate(ours, options).makespan, of_sweep * (1 + kRounding))
              << golden.schedule << ", P = " << golden.num_ranks << ", M = " << golden.num_microbatches << ", seed "
              << seed;
        }
      }
    }
  }
}

TEST(Simulate, Scales_with_all_costs) {
  EXPECT_TRUE(rc::check([] {
    const auto pipeline = *test::random_pipeline();
    const auto costs = *test::random_costs(pipeline.stages.num_stages());
    auto doubled = costs;
    for (auto& stage : doubled.stages) {
      for (double* cost : {&stage.forward, &stage.backward, &stage.backward_input, &stage.backward_weight}) *cost *= 2;
    }
    doubled.link = {.latency = 2 * costs.link.latency, .time = 2 * costs.link.time};
    const auto run = simulate(pipeline, {.costs = costs});
    RC_ASSERT(simulate(pipeline, {.costs = doubled}).makespan == 2 * run.makespan);
    for (std::int64_t rank = 0; rank < run.num_ranks; ++rank) {
      RC_ASSERT(run.bubble_fraction(rank) >= -kRounding && run.bubble_fraction(rank) < 1);
    }
  }));
}

TEST(Simulate, A_message_takes_its_link_and_a_slot) {
  const auto program = parse_program(
      "r0: 0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2\n"
      "r1: 1RECV_F0 1F0 1RECV_F1 1F1 1RECV_F2 1F2\n");
  const PipelineCosts costs{.stages = {{.forward = 1}, {.forward = 10}}, .link = {.latency = 0.5, .time = 2}};
  const Simulation free = simulate(program, {.costs = costs});
  ASSERT_EQ(free.messages.size(), 3u);
  EXPECT_EQ(free.messages[1].start, 3);  // when the first has left
  EXPECT_EQ(free.messages[2].arrival, 7.5);
  EXPECT_EQ(free.makespan, 3.5 + 30);
  const Simulation one_slot = simulate(program, {.costs = costs, .num_inbox_slots = 1});
  EXPECT_EQ(one_slot.messages[2].start, 13.5);  // when rank 1 has received the second
  EXPECT_EQ(one_slot.makespan, 3.5 + 30);
}

TEST(Simulate, Composed_computations_hide_what_costs_say) {
  const auto program = test::golden_computations("dual_pipe_v", 2, 8);
  const double none = simulate(program).makespan;
  const double half = simulate(program, {.costs = {.composed_overlap = 0.5}}).makespan;
  const double all = simulate(program, {.costs = {.composed_overlap = 1}}).makespan;
  EXPECT_LT(half, none);
  EXPECT_LT(all, half);
}

TEST(Simulate, Says_where_a_program_stops) {
  EXPECT_THROW((void)simulate(parse_program("r0: 0F0 0RECV_B0 0SEND_F0 0B0\nr1: 1RECV_F0 1F0 1B0 1SEND_B0\n")),
               ConfigError);
  EXPECT_THROW((void)simulate(parse_program("r0: 0F0 0F1 0SEND_F1 0SEND_F0\nr1: 1RECV_F0 1RECV_F1 1F0 1F1\n")),
               ConfigError);
  EXPECT_THROW((void)simulate(parse_program("r0: 0F0\n"), {.num_inbox_slots = 0}), ConfigError);
  EXPECT_THROW((void)simulate(parse_program("r0: 0F0\n"), {.costs = {.stages = {{}, {}}}}), ConfigError);
}

}  // namespace
}  // namespace d9d::simulate_test
