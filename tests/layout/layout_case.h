// A small training job whose result must not depend on the layout: trains over any mesh, gathers the result, and
// compares it with that of one rank.
//
// Example
//   expect_same(train({.mesh = {.data_parallel_shard = 4}}, job), on_one_rank(job), tolerance("fp64"));
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tests/layout/layout_job.h"
#include "tests/layout/mutation.h"
#include "tests/layout/plan_mutation.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerances.h"

namespace d9d::test {

// Results of all ranks, as whole tensors.
struct LayoutResult {
  std::vector<double> losses;  // of each step
  std::vector<double> norms;
  std::map<std::string, at::Tensor> layer_norms;  // "step 0 grad_norm/<layer>", "step 0 param_norm/<layer>": 0-dim
  // "step 0 <name>": divided but not clipped; parameters that have a gradient.
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> parameters;  // after the last step
  std::map<std::string, at::Tensor> averages;    // of parameters, if the job has them
  std::map<std::string, at::Tensor> buffers;     // persistent ones
  // Faults of the layout itself: replicas that differ, parts that do not fit.
  std::vector<std::string> faults;
};

// Trains for the job's steps, with clipping.
[[nodiscard]] LayoutResult train(const Layout& layout, const LayoutJob& job,
                                 RankBackend backend = RankBackend::kThreads, Mutation mutation = Mutation::kNone);

// Of a job on one rank with default settings, which many layouts are compared with: trains if it did not do so lately.
[[nodiscard]] LayoutResult on_one_rank(const LayoutJob& job);

// train() of a case, which may be saved after some steps and continue on another layout.
[[nodiscard]] LayoutResult train(const LayoutCase& drawn, Mutation mutation = Mutation::kNone);

// The same on another placement than a plan declares.
[[nodiscard]] LayoutResult train(const LayoutCase& drawn, const PlanMutation& mutation);

// A line for each difference; empty if there is none. Floating dtypes may differ.
[[nodiscard]] std::string difference(const LayoutResult& actual, const LayoutResult& expected,
                                     const Tolerance& tolerance);
void expect_same(const LayoutResult& actual, const LayoutResult& expected, const Tolerance& tolerance);

// Trains with the layout and on one rank with default settings, or checks the expected refusal. Empty if the result is
// correct. Exceptions of a training with a mutation are not findings and are rethrown, but of kAnnouncedDtype, whose
// numbers would differ by no more than those of mixed dtypes may.
[[nodiscard]] std::string fault_of(const LayoutCase& drawn, Mutation mutation = Mutation::kNone);

}  // namespace d9d::test
