#include "d9d/loop/language_model/language_model_task.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/loop/graphs/graph_key.h"

#include "tests/support/ranks.h"

namespace d9d::test::language_model_task_test {
namespace {

// Two sequences of five positions.
TokenBatch padded(std::vector<std::int64_t> lengths) {
  const at::Tensor zeros = at::zeros({2, 5}, at::kLong);
  return {.input_ids = zeros, .labels = zeros, .position_ids = zeros, .packed = {}, .lengths = std::move(lengths)};
}

struct Told {
  std::vector<std::int64_t> num_tokens;
  std::set<std::string> kinds;  // for CUDA graphs
};

Told tell(bool tells_padding, const std::vector<std::vector<std::int64_t>>& lengths) {
  Told told;
  run_ranks(RankBackend::kThreads, 1, [&](World& world) {
    const DistContext context({.world = borrowed(world), .log_sink = [](std::string_view) {}});
    LanguageModelTask task(context, {.tells_padding = tells_padding});
    for (const auto& each : lengths) {
      const auto inputs = task.build_forward_inputs(padded(each));
      EXPECT_EQ(inputs.shared.sequence.real_positions.has_value(), tells_padding);
      told.num_tokens.push_back(inputs.num_tokens);
      told.kinds.insert(graph_key(inputs.shared, at::kCPU).value());
    }
  });
  return told;
}

TEST(LanguageModelTaskPadding, Makes_no_kinds_of_microbatches_where_no_layer_asks_for_it) {
  const std::vector<std::vector<std::int64_t>> lengths = {{3, 5}, {5, 3}, {1, 2}};
  const std::vector<std::int64_t> num_tokens = {8, 8, 3};
  EXPECT_EQ(tell(true, lengths).num_tokens, num_tokens);
  EXPECT_EQ(tell(true, lengths).kinds.size(), 2);
  EXPECT_EQ(tell(false, lengths).num_tokens, num_tokens);
  EXPECT_EQ(tell(false, lengths).kinds.size(), 1);
}

}  // namespace
}  // namespace d9d::test::language_model_task_test
