#include "d9d/pipelining/simulator/memory.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck.h>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/live_microbatches.h"
#include "d9d/pipelining/program/rank_plan.h"
#include "d9d/pipelining/schedules/insert_messages.h"
#include "d9d/pipelining/simulator/chrome_trace.h"
#include "d9d/pipelining/simulator/plot_svg.h"

#include "tests/pipelining/golden_schedules.h"
#include "tests/pipelining/random_pipelines.h"

namespace d9d::memory_test {
namespace {

TEST(Memory, An_input_pass_exchanges_activations_for_what_weights_need) {
  const auto program = parse_program("r0: 0F0 0F1 0I0 0W0 0B1\n");
  const PipelineCosts costs{.stages = {{.activation_bytes = 10, .deferred_bytes = 4}}};
  std::vector<std::pair<double, double>> curve;
  for (const auto& [time, bytes] : memory_curve(simulate(program), costs, 0)) curve.emplace_back(time, bytes);
  using Sample = std::pair<double, double>;
  EXPECT_THAT(curve, ::testing::ElementsAre(Sample(0, 10), Sample(1, 20), Sample(3, 14), Sample(4, 10), Sample(6, 0)));
  EXPECT_EQ(peak_bytes(simulate(program), costs, 0), 20);
}

TEST(Memory, Unit_bytes_count_live_microbatches) {
  EXPECT_TRUE(rc::check([] {
    const auto pipeline = *test::random_pipeline();
    const auto run = simulate(pipeline, {.costs = *test::random_costs(pipeline.stages.num_stages())});
    const auto peaks = peak_live_microbatches(pipeline);
    for (std::int64_t rank = 0; rank < run.num_ranks; ++rank) {
      RC_ASSERT(peak_bytes(run, {}, rank) == static_cast<double>(peaks[static_cast<std::size_t>(rank)]));
      RC_ASSERT(memory_curve(run, {}, rank).back().bytes == 0);
    }
  }));
}

TEST(Memory, Forwards_only_keep_nothing) {
  const auto run = simulate(test::golden_computations("inference", 2, 4));
  EXPECT_EQ(peak_bytes(run, {}, 0), 1);
}

TEST(RankPlan, Computes_each_pass_in_order_and_says_which_one_completes_a_stage) {
  EXPECT_TRUE(rc::check([] {
    const auto program = insert_messages(*test::random_pipeline());
    for (std::int64_t rank = 0; rank < program.stages.num_ranks(); ++rank) {
      const RankPlan plan = plan_rank(program, rank);
      std::set<std::pair<StageIndex, MicrobatchIndex>> held;
      std::map<StageIndex, bool> is_complete;
      std::int64_t most = 0;
      RankProgram replayed;
      for (const auto& step : plan) {
        if (const auto* message = std::get_if<PlannedMessage>(&step)) {
          replayed.emplace_back(message->action);
          continue;
        }
        std::vector<ComputeAction> parts;
        for (const auto& [action, is_last, backward_follows, lane] : std::get<std::vector<PlannedCompute>>(step)) {
          const auto key = std::pair(stage_of(action), microbatch_of(action));
          RC_ASSERT(!is_complete[stage_of(action)]);  // nothing of a stage follows its last backward
          if (holds<ForwardAction>(action)) RC_ASSERT(held.insert(key).second);
          RC_ASSERT(held.contains(key));
          most = std::max(most, std::ssize(held));
          if (holds<BackwardAction>(action) || holds<BackwardWeightAction>(action)) held.erase(key);
          is_complete[stage_of(action)] = is_last;
          parts.push_back(action);
        }
        replayed.push_back(parts.size() == 1 ? Action(parts[0]) : Action(ComposedAction{parts}));
      }
      RC_ASSERT(replayed == program.ranks[static_cast<std::size_t>(rank)]);
      RC_ASSERT(held.empty());
      RC_ASSERT(most <= peak_live_microbatches(program)[static_cast<std::size_t>(rank)]);
      for (const auto& [stage, complete] : is_complete) RC_ASSERT(complete);
    }
  }));
}

TEST(RankPlan, Both_ranks_of_a_link_number_its_messages_alike) {
  const auto program = insert_messages(test::golden_computations("1f1b V=2 zb", 4, 8));
  std::map<std::pair<DirectedLink, std::int64_t>, std::vector<Transfer>> messages;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    for (const auto& step : plan_rank(program, rank)) {
      if (const auto* message = std::get_if<PlannedMessage>(&step)) {
        messages[{message->link, message->sequence}].push_back(transfer_of(message->action));
      }
    }
  }
  for (const auto& [key, transfers] : messages) {
    ASSERT_EQ(transfers.size(), 2u);
    EXPECT_EQ(transfers[0], transfers[1]);
  }
  EXPECT_EQ(links_of(program).size(), 8u);  // a ring, both ways
}

TEST(RankPlan, The_last_backward_of_gpipe_is_that_of_microbatch_0) {
  const RankPlan plan = plan_rank(insert_messages(test::golden_computations("gpipe", 1, 3)), 0);
  const auto& last = std::get<std::vector<PlannedCompute>>(plan.back());
  EXPECT_EQ(last[0], (PlannedCompute{.action = BackwardAction{{0}, {0}}, .is_last = true}));
}

// The forwards of a rank whose backward follows.
std::string followed(const PipelineProgram& program, std::int64_t rank) {
  std::string texts;
  for (const auto& step : plan_rank(program, rank)) {
    const auto* const parts = std::get_if<std::vector<PlannedCompute>>(&step);
    if (parts == nullptr) continue;
    for (const PlannedCompute& part : *parts) {
      if (part.backward_follows) texts += to_text(part.action) + " ";
    }
  }
  return texts;
}

TEST(RankPlan, Says_which_forwards_the_backward_follows) {
  EXPECT_EQ(followed(parse_program("r0: 0F0 0F1 0B1 0F2 0I2 0F3 0W2 0B3 0B0\n"), 0), "0F1 0F2 ");
  EXPECT_EQ(followed(parse_program("r0: 0F0 0F1|0B0 0F2|0B1 0B2\n"), 0), "");  // composed computations run in between
  EXPECT_EQ(followed(parse_program("r0: 0F0 1F0 1B0 0B0\n"), 0), "1F0 ");      // two stages on one rank
  EXPECT_EQ(followed(insert_messages(test::golden_computations("gpipe", 2, 4)), 1), "1F3 ");
  EXPECT_EQ(followed(insert_messages(test::golden_computations("1f1b", 2, 4)), 1), "1F0 1F1 1F2 1F3 ");
  EXPECT_EQ(followed(insert_messages(test::golden_computations("1f1b", 2, 4)), 0), "");
  EXPECT_EQ(followed(insert_messages(test::golden_computations("inference", 2, 4)), 1), "");
}

TEST(PlotSvg, Draws_each_computation_and_message_once) {
  const auto program = test::golden_computations("zero_bubble_v", 2, 4);
  const Simulation run = simulate(program, {.costs = {.link = {.time = 0.25}}});
  const std::string svg = plot_svg({{.title = "a < b", .run = run}, {.title = "again", .run = run}});
  const auto count = [&](const std::string& text) {
    std::size_t found = 0;
    for (auto at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("class=\"cell\""), 2 * run.computations.size());
  EXPECT_EQ(count("class=\"message "), 2 * run.messages.size());
  EXPECT_EQ(count("class=\"memory\""), 4u);
  EXPECT_EQ(count("a &lt; b"), 1u);
  EXPECT_THROW((void)plot_svg({}), ConfigError);
}

TEST(ChromeTrace, Has_a_slice_for_each_computation_and_an_arrow_for_each_message) {
  const Simulation run = simulate(test::golden_computations("dual_pipe_v", 2, 4), {.costs = {.composed_overlap = 0.5}});
  const auto events = nlohmann::json::parse(chrome_trace(run, {}, 1000)).at("traceEvents");
  std::map<std::string, std::size_t> phases;
  for (const auto& event : events) ++phases[event.at("ph")];
  EXPECT_EQ(phases["X"], run.computations.size());
  EXPECT_EQ(phases["s"], run.messages.size());
  EXPECT_EQ(phases["f"], run.messages.size());
  EXPECT_GT(phases["C"], 0u);
}

}  // namespace
}  // namespace d9d::memory_test
