#include "d9d/pipelining/program/validate.h"

#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/live_microbatches.h"
#include "d9d/pipelining/program/transfer.h"
#include "d9d/pipelining/schedules/insert_messages.h"

#include "tests/pipelining/golden_schedules.h"
#include "tests/pipelining/random_pipelines.h"

namespace d9d::validate_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const PipelineProgram& program, const ProgramLimits& limits = {}) {
  try {
    validate(program, limits);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Validate, Names_rank_action_stage_and_microbatch) {
  const char* r1 = "r1: 1RECV_F0 1F0 1B0 1SEND_B0\n";
  const auto error = [&](const std::string& r0) { return error_of(parse_program("r0: " + r0 + "\n" + r1)); };
  EXPECT_EQ(error("0F0 0SEND_F0 0RECV_B0 0B0"), "");
  EXPECT_THAT(
      error("0SEND_F0 0F0 0RECV_B0 0B0"),
      HasSubstr("rank 0, action 0 (0SEND_F0: stage 0, microbatch 0): expected its transfer to be computed before"));
  EXPECT_THAT(error("0F0 0SEND_F0 0B0 0RECV_B0"),
              HasSubstr("rank 0, action 2 (0B0: stage 0, microbatch 0): expected 0RECV_B0 before 0B0, which uses it"));
  EXPECT_THAT(error("0F0 0SEND_F0 0RECV_B0 0I0"),
              HasSubstr("rank 0 never runs W after its I of stage 0, microbatch 0"));
  EXPECT_THAT(error("0F0 0SEND_F0 0RECV_B0 0W0 0I0"), HasSubstr("expected the input pass (I) before 0W0"));
  EXPECT_THAT(error("0F0 0SEND_F0 0RECV_B0 0B0 0W0"), HasSubstr("expected one B or W"));
  EXPECT_THAT(error("0F0 0SEND_F0 0RECV_B0 0B0 0F0"),
              HasSubstr("action 4 (0F0: stage 0, microbatch 0): expected 0F0 once"));
  EXPECT_THAT(error("0RECV_B0 0B0 0F0 0SEND_F0"), HasSubstr("expected the forward before 0B0"));
  EXPECT_THAT(error("0F0 0SEND_F0 0B0"), HasSubstr("expected 0RECV_B0 before 0B0"));
  EXPECT_THAT(error("0F0 0RECV_B0 0B0"), HasSubstr("rank 0 lacks 0SEND_F0 (stage 0, microbatch 0)"));
  EXPECT_THAT(error("0F0 0SEND_F0 0SEND_F0 0RECV_B0 0B0"), HasSubstr("expected 0SEND_F0 once"));
  EXPECT_THAT(error("0F0 0SEND_F0 0RECV_B0 0B0 0SEND_B0"), HasSubstr("a neighbouring stage"));
  EXPECT_THAT(error("0F0 0RECV_B0 0SEND_F0 0B0"),
              AllOf(HasSubstr("rank 0, action 1 (0RECV_B0: stage 0, microbatch 0) waits for rank 1: 1SEND_B0"),
                    HasSubstr("rank 1, action 0 (1RECV_F0: stage 1, microbatch 0) waits for rank 0: 0SEND_F0")));
}

TEST(Validate, A_microbatch_of_any_number_needs_all_before_it) {
  for (const char* number : {"7", "2000000000", "9000000000000000000"}) {
    EXPECT_THAT(
        error_of(parse_program(cat("r0: 0F0 1F0 1B0 0B0 0F", number, " 1F", number, " 1B", number, " 0B", number))),
        HasSubstr("rank 0 never runs F of stage 0, microbatch 1"));
  }
}

TEST(Validate, Neighbours_on_one_rank_exchange_nothing) {
  EXPECT_EQ(error_of(parse_program("r0: 0F0 1F0 1B0 0B0\n")), "");
  EXPECT_THAT(error_of(parse_program("r0: 0F0 0SEND_F0 1RECV_F0 1F0 1B0 0B0\n")), HasSubstr("which share the rank"));
  EXPECT_THAT(error_of(parse_program("r0: 1F0 0F0 1B0 0B0\n")),
              HasSubstr("the forward of stage 0, microbatch 0 before 1F0"));
  EXPECT_THAT(error_of(parse_program("r0: 0F0|1F0 1B0 0B0\n")),
              HasSubstr("the forward of stage 0, microbatch 0 before 1F0"));
  EXPECT_THAT(error_of(parse_program("r0: 0F0 0B0|0F1 0B1|0F1\n")), HasSubstr("0F1 once"));
}

TEST(Validate, Messages_of_a_link_keep_their_order) {
  EXPECT_THAT(
      error_of(parse_program("r0: 0F0 0SEND_F0 0F1 0SEND_F1\nr1: 1RECV_F1 1F1 1RECV_F0 1F0\n")),
      HasSubstr("rank 1, action 0 (1RECV_F1: stage 1, microbatch 1): expected to receive messages in the order in "
                "which rank 0 sends them: message 0 of the link is 0SEND_F0"));
}

// Each rank fills the other's inbox before it empties its own.
TEST(Validate, Full_inboxes_hang_where_there_are_too_few_slots) {
  const auto program = parse_program(
      "r0: 0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 2RECV_F0 2F0 2RECV_F1 2F1 2RECV_F2 2F2\n"
      "r1: 1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_F2 1F2 1SEND_F2\n");
  EXPECT_EQ(error_of(program), "");
  EXPECT_EQ(error_of(program, {.num_inbox_slots = 2}), "");
  EXPECT_EQ(error_of(program, {.num_inbox_slots = 1}), "");
  EXPECT_THAT(error_of(program, {.num_inbox_slots = 0}), HasSubstr("waits for rank"));
  const auto longer =
      insert_messages(test::golden_computations("looped_bfs V=2", 2, 8), {.num_inbox_slots = std::nullopt});
  EXPECT_EQ(error_of(longer), "");
  EXPECT_THAT(error_of(longer, {.num_inbox_slots = 1}), HasSubstr("one of 1 receive buffers to be free"));
}

TEST(Validate, Live_microbatches_stay_below_the_limit) {
  const auto program = insert_messages(test::golden_computations("1f1b V=1 zb", 4, 8));
  EXPECT_EQ(error_of(program, {.max_live_microbatches = 4}), "");
  EXPECT_THAT(error_of(program, {.max_live_microbatches = 3}),
              HasSubstr("(0F3: stage 0, microbatch 3): expected at most 3 live microbatches, got 4"));
}

// Whether the waits have a circle, by a graph of which action must come before which.
bool has_circle(const PipelineProgram& program, std::int64_t num_slots) {
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::pair<std::size_t, std::size_t>>> after;
  std::map<std::pair<std::size_t, std::size_t>, int> num_before;
  std::map<DirectedLink, std::array<std::vector<std::pair<std::size_t, std::size_t>>, 2>> ends;
  const auto edge = [&](auto from, auto to) {
    after[from].push_back(to);
    ++num_before[to];
  };
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      num_before.try_emplace({rank, i}, 0);
      if (i > 0) edge(std::pair(rank, i - 1), std::pair(rank, i));
      const auto* message = std::get_if<MessageAction>(&program.ranks[rank][i]);
      if (message != nullptr)
        ends[*link_of(transfer_of(*message), program.stages)][is_send(*message) ? 0 : 1].emplace_back(rank, i);
    }
  }
  for (const auto& [link, sides] : ends) {
    for (std::size_t k = 0; k < sides[0].size(); ++k) {
      edge(sides[0][k], sides[1][k]);
      const auto slots = static_cast<std::size_t>(num_slots);
      if (k >= slots) edge(sides[1][k - slots], sides[0][k]);
    }
  }
  std::vector<std::pair<std::size_t, std::size_t>> ready;
  for (const auto& [node, count] : num_before) {
    if (count == 0) ready.push_back(node);
  }
  std::size_t num_done = 0;
  for (; !ready.empty(); ++num_done) {
    const auto node = ready.back();
    ready.pop_back();
    for (const auto& next : after[node]) {
      if (--num_before[next] == 0) ready.push_back(next);
    }
  }
  return num_done != num_before.size();
}

TEST(Validate, Finds_exactly_the_circles_of_the_graph_of_waits) {
  EXPECT_TRUE(has_circle(
      insert_messages(test::golden_computations("looped_bfs V=2", 2, 8), {.num_inbox_slots = std::nullopt}), 1));
  EXPECT_TRUE(rc::check([] {
    const auto pipeline = *test::random_pipeline();
    const auto placed_for = *rc::gen::element<std::optional<std::int64_t>>(std::nullopt, 1, 2);
    const auto slots = *rc::gen::inRange<std::int64_t>(1, 4);
    const auto program = insert_messages(pipeline, {.num_inbox_slots = placed_for});
    const bool expected = has_circle(program, slots);
    RC_ASSERT(!error_of(program, {.num_inbox_slots = slots}).empty() == expected);
  }));
}

// Functions that add a fault to a program. Each returns false if the program has no place for it.
using Fault = bool (*)(PipelineProgram&, std::size_t rank, std::size_t position);

bool drop(PipelineProgram& program, std::size_t rank, std::size_t position) {
  program.ranks[rank].erase(program.ranks[rank].begin() + static_cast<std::ptrdiff_t>(position));
  return true;
}
bool repeat(PipelineProgram& program, std::size_t rank, std::size_t position) {
  const Action action = program.ranks[rank][position];
  program.ranks[rank].push_back(action);
  return true;
}
bool move_to_another_rank(PipelineProgram& program, std::size_t rank, std::size_t position) {
  if (program.ranks.size() < 2) return false;
  program.ranks[(rank + 1) % program.ranks.size()].push_back(program.ranks[rank][position]);
  return drop(program, rank, position);
}
template <class Change>
bool change_one(Action& action, const Change& change) {
  const auto on = [&](auto& variant) { std::visit(change, variant); };
  if (auto* message = std::get_if<MessageAction>(&action)) on(*message);
  if (auto* compute = std::get_if<ComputeAction>(&action)) on(*compute);
  if (auto* composed = std::get_if<ComposedAction>(&action)) on(composed->parts[0]);
  return true;
}
bool another_microbatch(PipelineProgram& program, std::size_t rank, std::size_t position) {
  return change_one(program.ranks[rank][position], [](auto& one) { ++one.microbatch.value; });
}
bool another_stage(PipelineProgram& program, std::size_t rank, std::size_t position) {
  return change_one(program.ranks[rank][position], [](auto& one) { ++one.stage.value; });
}
bool send_before_computing(PipelineProgram& program, std::size_t rank, std::size_t position) {
  auto& actions = program.ranks[rank];
  const auto* message = std::get_if<MessageAction>(&actions[position]);
  if (message == nullptr || !is_send(*message)) return false;
  std::rotate(actions.begin(), actions.begin() + static_cast<std::ptrdiff_t>(position),
              actions.begin() + static_cast<std::ptrdiff_t>(position) + 1);
  return true;
}
bool receive_after_use(PipelineProgram& program, std::size_t rank, std::size_t position) {
  auto& actions = program.ranks[rank];
  const auto* message = std::get_if<MessageAction>(&actions[position]);
  if (message == nullptr || is_send(*message)) return false;
  std::rotate(actions.begin() + static_cast<std::ptrdiff_t>(position),
              actions.begin() + static_cast<std::ptrdiff_t>(position) + 1, actions.end());
  return true;
}
bool backward_before_forward(PipelineProgram& program, std::size_t rank, std::size_t position) {
  auto& actions = program.ranks[rank];
  if (compute_parts(actions[position]).empty() || holds<ForwardAction>(compute_parts(actions[position])[0]))
    return false;
  std::rotate(actions.begin(), actions.begin() + static_cast<std::ptrdiff_t>(position),
              actions.begin() + static_cast<std::ptrdiff_t>(position) + 1);
  return true;
}
bool exchange_receives_of_a_link(PipelineProgram& program, std::size_t rank, std::size_t position) {
  auto& actions = program.ranks[rank];
  const auto receive_at = [&](std::size_t i) {
    const auto* message = std::get_if<MessageAction>(&actions[i]);
    return message != nullptr && !is_send(*message) ? message : nullptr;
  };
  for (std::size_t i = position + 1; receive_at(position) != nullptr && i < actions.size(); ++i) {
    if (receive_at(i) == nullptr) continue;
    if (link_of(transfer_of(*receive_at(i)), program.stages) !=
        link_of(transfer_of(*receive_at(position)), program.stages))
      continue;
    std::swap(actions[position], actions[i]);
    return true;
  }
  return false;
}

TEST(Validate, Finds_every_planted_fault) {
  const std::map<std::string, Fault> faults = {{"drop", drop},
                                               {"repeat", repeat},
                                               {"move to another rank", move_to_another_rank},
                                               {"another microbatch", another_microbatch},
                                               {"another stage", another_stage},
                                               {"send before computing", send_before_computing},
                                               {"receive after use", receive_after_use},
                                               {"backward before forward", backward_before_forward},
                                               {"exchange receives", exchange_receives_of_a_link}};
  for (const auto& [name, fault] : faults) {
    int num_planted = 0;
    EXPECT_TRUE(rc::check("finds: " + name, [&] {
      auto program = insert_messages(*test::random_pipeline());
      RC_PRE(program.stages.num_stages() * program.num_microbatches > 1);  // F0 alone is a program too
      validate(program, {.num_inbox_slots = 2});
      const auto rank = *rc::gen::inRange<std::size_t>(0, program.ranks.size());
      const std::size_t length = program.ranks[rank].size();
      const auto first = *rc::gen::inRange<std::size_t>(0, length);
      const auto before = program;
      for (std::size_t i = 0; i < length && program == before; ++i) {  // tries the next place if the fault does not fit
        if (!fault(program, rank, (first + i) % length)) program = before;
      }
      if (program == before) return;
      ++num_planted;
      const std::string error = error_of(program, {.num_inbox_slots = 2});
      RC_LOG() << to_text(before) << to_text(program) << error;
      RC_ASSERT(error.find("rank ") != std::string::npos && error.find("stage ") != std::string::npos &&
                error.find("microbatch ") != std::string::npos);
    }));
    EXPECT_GT(num_planted, 10) << name;
  }
}

}  // namespace
}  // namespace d9d::validate_test
