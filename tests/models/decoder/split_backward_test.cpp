// Decoders in a split backward: the products of all weights of layers and the embedding wait, and gradients are bit for
// bit those of a whole backward.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/deferred_gradients.h"
#include "d9d/models/decoder/decoder_with_head.h"

#include "tests/support/tiny_blocks.h"

namespace d9d::test::split_backward_test {
namespace {

constexpr std::int64_t kNumLayers = 3;

struct Gradients {
  std::map<std::string, at::Tensor> by_name = {};
  std::vector<std::size_t> num_products = {};  // that waited, of each microbatch
};

Gradients gradients_of(const DecoderFamily& family, bool is_checkpointed, bool is_split) {
  const auto model = initialized(make_decoder_for_causal_lm(
      make_backbone(family, {.checkpointing = is_checkpointed}, {.num_layers = kNumLayers})));
  std::vector<at::Tensor> weights;
  for (const auto& [name, parameter] : model->named_parameters()) weights.push_back(parameter->local());
  DeferredGradients deferred(weights);
  std::vector<WeightGradients> waiting;
  Gradients result;
  for (const std::int64_t shift : {0, 3}) {
    const auto output = std::get<DecoderOutput<LanguageModellingHead>>(
        model(SequenceInput{(tiny_ids() + shift).remainder(23)},
              DecoderForCausalLM::Shared{tiny_sequence(), {tiny_labels()}}));
    at::Tensor loss = output.head.cross_entropy.sum();
    if (output.auxiliary_loss) loss = loss + *output.auxiliary_loss;
    const auto backward = [&] { loss.backward(); };
    if (is_split) {
      waiting.push_back(deferred.keep(backward));
      result.num_products.push_back(waiting.back().num_products());
    } else {
      backward();
    }
  }
  for (WeightGradients& each : waiting) each.run();
  for (const auto& [name, parameter] : model->named_parameters()) result.by_name[name] = parameter->local().grad();
  return result;
}

TEST(DecoderSplitBackward, Leaves_the_products_of_all_layers_and_gives_the_same_bits) {
  for (const DecoderFamily& family : decoder_families()) {
    // q, k and v in one, o, gate and up in one, down; with experts the router, and gate and up of experts apart
    const std::size_t of_weights = family.has_experts ? 6 : 4, of_embeddings = 2;
    for (const bool is_checkpointed : {false, true}) {
      SCOPED_TRACE(family.name + (is_checkpointed ? ", checkpointed" : ""));
      const Gradients whole = gradients_of(family, is_checkpointed, /*is_split=*/false);
      const Gradients split = gradients_of(family, is_checkpointed, /*is_split=*/true);
      // the biases of q, k and v in one
      const std::size_t of_biases = whole.by_name.contains("model.layers.0.self_attn.q_proj.bias") ? 1 : 0;
      const std::size_t of_a_layer = of_weights + of_biases;
      EXPECT_EQ(split.num_products, std::vector<std::size_t>(2, kNumLayers * of_a_layer + of_embeddings));
      for (const auto& [name, gradient] : whole.by_name) {
        ASSERT_TRUE(split.by_name.at(name).defined()) << name;
        EXPECT_TRUE(at::equal(split.by_name.at(name), gradient)) << name;
      }
    }
  }
}

}  // namespace
}  // namespace d9d::test::split_backward_test
