// A small training job whose result must not depend on the layout: run over any mesh, gathered, compared with one rank.
//
// Example
//   const LayoutResult expected = train({}, job);
//   expect_same(train({.data_parallel_shard = 4}, job), expected, tolerance("fp64"));
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/modules/models/decoder/decoder_with_head.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"

#include "tests/support/ranks.h"
#include "tests/support/tolerances.h"

namespace d9d::test {

enum class ModelFamily { kDense, kMoE };

struct LayoutJob {
  ModelFamily family = ModelFamily::kDense;
  at::ScalarType dtype = at::kDouble;
  bool ties_embeddings = false;
  bool checkpoints = false;
  bool freezes_attention = false;      // of every second layer, and the embedding
  bool is_mixed = false;               // norms in fp32
  bool balances_experts = false;       // by an auxiliary loss
  bool starves_experts = false;        // all tokens go to the first two of eight
  std::int64_t num_accumulations = 1;  // microbatches of each rank of the largest layout, 8 ranks; others have more
  FsdpConfig fsdp = {};
};

// Of all ranks, whole.
struct LayoutResult {
  std::vector<double> losses;  // of each step
  std::vector<double> norms;
  std::map<std::string, at::Tensor> gradients;   // of the first step, divided, not clipped
  std::map<std::string, at::Tensor> parameters;  // after the last
  std::map<std::string, at::Tensor> state;       // the same, as Module::full_state_dict() gathers it
};

// Three steps of AdamW with clipping. Replicas must agree bit for bit.
[[nodiscard]] LayoutResult train(const DeviceMeshParameters& mesh, const LayoutJob& job,
                                 RankBackend backend = RankBackend::kThreads);

void expect_same(const LayoutResult& actual, const LayoutResult& expected, const Tolerance& tolerance);

}  // namespace d9d::test
