// Which layers of a user's own tensor parallelism refuses by name.
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/decoder/pre_norm_decoder.h"

#include "tests/support/ranks.h"

namespace d9d::test::tensor_parallel_layers_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Edge = TensorPlan::Edge;

constexpr std::int64_t kHidden = 8;

// Has a plan if `own` has one.
struct Block : Module {
  explicit Block(std::optional<TensorPlan> own) : plan(std::move(own)) {}
  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t /*num_ranks*/) const override { return plan; }
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const { return x; }
  const std::optional<TensorPlan> plan;
};

struct Layer : DecoderLayer {
  explicit Layer(const std::optional<TensorPlan>& plan) : block(register_module<Block>("block", plan)) {}
  [[nodiscard]] DecoderLayerOutput forward(const at::Tensor& hidden, const LayerContext& /*context*/) const override {
    return {.hidden_states = block(hidden), .auxiliary_loss = std::nullopt};
  }
  const ModulePtr<Block> block;
};

void parallelize(const std::optional<TensorPlan>& plan) {
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context({.mesh = {.tensor_parallel = 2}, .world = borrowed(world), .local_rank = world.rank()});
    const PreNormDecoderConfig config{.hidden_size = kHidden,
                                      .layers = {.num_layers = 1},
                                      .rms_norm_eps = 1e-6,
                                      .vocabulary = {.sizes = {{"text", 6}}, .order = {"text"}},
                                      .rope = {.base = 100, .head_dim = 4, .max_position_ids = 16}};
    const auto decoder =
        make_module<PreNormDecoder>(config, DecoderStageOptions{},
                                    [&](std::int64_t) -> ModulePtr<DecoderLayer> { return make_module<Layer>(plan); });
    parallelize_decoder(context, *decoder, {});
  });
}

TEST(TensorParallelLayers, Of_blocks_with_shards_at_their_edges_are_laid_out) {
  EXPECT_NO_THROW(parallelize(TensorPlan{.input = Edge::kShard, .output = Edge::kShard}));
}

TEST(TensorParallelLayers, Of_blocks_that_want_whole_sequences_are_refused) {
  TensorPlan of_input, of_output;
  of_input.input = Edge::kWhole;
  of_output.output = Edge::kWhole;
  for (const TensorPlan& plan : {of_input, of_output}) {
    EXPECT_THAT([&] { parallelize(plan); },
                ThrowsMessage<ConfigError>(HasSubstr("got whole ones at 'layers.0.block'")));
  }
}

TEST(TensorParallelLayers, Of_blocks_without_a_plan_are_refused_though_they_have_no_parameters) {
  EXPECT_THAT([] { parallelize(std::nullopt); },
              ThrowsMessage<ConfigError>(HasSubstr("needs a tensor_plan() of 'layers.0.block'")));
}

}  // namespace
}  // namespace d9d::test::tensor_parallel_layers_test
