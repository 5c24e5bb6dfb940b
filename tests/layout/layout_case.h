// A small training job whose result must not depend on the layout: run over any mesh, gathered, compared with one rank.
//
// Example
//   const LayoutResult expected = train({}, job);
//   expect_same(train({.mesh = {.data_parallel_shard = 4}}, job), expected, tolerance("fp64"));
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tests/layout/layout_job.h"
#include "tests/layout/mutation.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerances.h"

namespace d9d::test {

// Of all ranks, whole.
struct LayoutResult {
  std::vector<double> losses;  // of each step
  std::vector<double> norms;
  std::map<std::string, at::Tensor> gradients;   // "step 0 <name>": divided, not clipped; parameters that have one
  std::map<std::string, at::Tensor> parameters;  // after the last step
  std::map<std::string, at::Tensor> buffers;     // persistent ones
  std::vector<std::string> faults;               // of the layout itself: replicas that differ, parts that do not fit
};

// Steps of the optimiser, with clipping.
[[nodiscard]] LayoutResult train(const Layout& layout, const LayoutJob& job,
                                 RankBackend backend = RankBackend::kThreads, Mutation mutation = Mutation::kNone);

// What differs, a line each; empty: nothing. Gradients may be of other dtypes.
[[nodiscard]] std::string difference(const LayoutResult& actual, const LayoutResult& expected,
                                     const Tolerance& tolerance);
void expect_same(const LayoutResult& actual, const LayoutResult& expected, const Tolerance& tolerance);

// Trains on the layout and on one rank without any setting, or asks for the refusal that is due. Empty: as it must be.
// What a mutated training throws is no finding, and is thrown on.
[[nodiscard]] std::string fault_of(const LayoutCase& drawn, Mutation mutation = Mutation::kNone);

}  // namespace d9d::test
