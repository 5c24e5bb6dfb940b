// Each placement of each plan, wrongly declared, and each reduction of tensor parallelism, left out, makes the list
// fail.
#include <algorithm>
#include <iostream>
#include <set>

#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/layout/layout_case.h"
#include "tests/layout/layout_model.h"
#include "tests/layout/support_list.h"

namespace d9d::test::plan_mutation_test {
namespace {

// The jobs of the list that tensor parallelism takes, on two ranks, without FSDP, whose flat groups would have cut the
// parameters already. Two steps, since the A of a new adapter has no gradient in the first.
std::vector<LayoutCase> cases() {
  std::vector<LayoutCase> all;
  for (const SupportCase& each : support_list()) {
    if (each.drawn.layout.mesh.tensor_parallel != 2 || each.part == SupportCase::Part::kResume) continue;
    LayoutCase drawn{.job = each.drawn.job, .layout = {.mesh = {.tensor_parallel = 2}, .pads = each.drawn.layout.pads}};
    drawn.job.num_layers = 1;
    drawn.job.num_steps = 2;
    if (!refusal(drawn)) all.push_back(drawn);
  }
  return all;
}

std::string message_of(const LayoutCase& drawn, const PlanMutation& mutation) {
  try {
    (void)train(drawn, mutation);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Differences count, and exceptions that a user sees in the first step.
bool is_found(const LayoutCase& drawn, const LayoutResult& expected, const PlanMutation& mutation) {
  try {
    return !difference(train(drawn, mutation), expected, tolerance("fp64")).empty();
  } catch (const std::exception&) {
    LayoutCase first_step = drawn;
    first_step.job.num_steps = 1;
    return !message_of(first_step, mutation).empty();
  }
}

TEST(PlanMutations, Are_found_by_the_list) {
  std::set<std::string> known;
  for (const LayoutCase& drawn : cases()) {
    const auto model = make_layout_model(drawn.job, Checkpoints::kNone);
    std::optional<LayoutResult> expected;
    for (const PlanMutation& mutation : plan_mutations(*model, drawn.layout.mesh.tensor_parallel)) {
      if (!known.insert(to_string(mutation)).second) continue;
      if (!expected) {
        expected = on_one_rank(drawn.job);
        expect_same(train(drawn), *expected, tolerance("fp64"));
      }
      EXPECT_TRUE(is_found(drawn, *expected, mutation)) << to_string(mutation) << "\nof " << to_source(drawn);
    }
  }
  std::cout << known.size() << " placements" << std::endl;
}

std::string found_fault(const LayoutCase& drawn, Mutation mutation) {
  try {
    return fault_of(drawn, mutation);
  } catch (const std::exception&) {
    return "";  // the library itself reports the fault here; another case must show wrong numbers
  }
}

TEST(TensorParallelReductions, Left_out_are_found_by_the_list) {
  const std::vector<LayoutCase> all = cases();
  using enum Mutation;
  for (const Mutation mutation : {kEnterSumDropped, kEnterOwnPositions, kLeaveSumDropped, kLeaveOwnGradient,
                                  kLossOfPart, kNormsOfPart, kGradientPlacement}) {
    const auto finds = [&](const LayoutCase& drawn) {
      return can_show(mutation, drawn) && !found_fault(drawn, mutation).empty();
    };
    EXPECT_TRUE(std::ranges::any_of(all, finds)) << "no case shows that " << describe(mutation);
  }
}

}  // namespace
}  // namespace d9d::test::plan_mutation_test
