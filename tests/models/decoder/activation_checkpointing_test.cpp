// Activation checkpointing of whole decoder layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/models/decoder/decoder_with_head.h"

#include "tests/support/block_oracle.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::activation_checkpointing_test {
namespace {
using test::Tensors;
using ::testing::ElementsAre;

// Loss and gradients of one microbatch.
Tensors trained(const ModulePtr<DecoderForCausalLM>& model) {
  const auto output = std::get<DecoderOutput<LanguageModellingHead>>(
      model(SequenceInput{test::tiny_ids()}, DecoderForCausalLM::Shared{test::tiny_sequence(), {test::tiny_labels()}}));
  at::Tensor loss = output.head.cross_entropy.sum();
  if (output.auxiliary_loss) loss = loss + *output.auxiliary_loss;
  loss.backward();
  Tensors results = test::gradients_of(*model);
  results.emplace("loss", loss);
  return results;
}

template <class Parameters>
ModulePtr<DecoderForCausalLM> make_model(const Parameters& parameters, bool enable_checkpointing) {
  return test::initialized(
      make_decoder_for_causal_lm(test::make_backbone(parameters, {.checkpointing = enable_checkpointing})));
}

void expect_same_bits(const Tensors& actual, const Tensors& expected) {
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(actual.at(name), tensor)) << name;
}

TEST(ActivationCheckpointing, Of_all_layers_changes_no_bit_of_the_gradients) {
  for (const test::DecoderFamily& family : test::decoder_families()) {
    SCOPED_TRACE(family.name);
    expect_same_bits(trained(make_model(family, true)), trained(make_model(family, false)));
  }
}

// Each layer follows another plan.
TEST(ActivationCheckpointing, By_any_plans_changes_no_bit_of_the_gradients) {
  const auto planned = [](const auto& parameters, std::size_t first) {
    const auto backbone = test::make_backbone(parameters, {});
    std::size_t i = first;
    for (const auto& layer : std::dynamic_pointer_cast<PreNormDecoder>(backbone.shared())->layers()) {
      const std::vector<ActivationPlan> plans = layer->activation_plans();
      EXPECT_EQ(plans.size(), 6U);
      layer->set_activation_plan(plans[i++ % plans.size()]);
    }
    return test::initialized(make_decoder_for_causal_lm(backbone));
  };
  for (const test::DecoderFamily& family : test::decoder_families()) {
    SCOPED_TRACE(family.name);
    const Tensors expected = trained(make_model(family, false));
    for (const std::size_t first : {0, 2, 4}) expect_same_bits(trained(planned(family, first)), expected);
  }
}

TEST(ActivationCheckpointing, Refuses_plans_that_a_module_cannot_follow) {
  const auto backbone = make_module<Qwen3MoEModel>(test::tiny_moe(), DecoderStageOptions{});
  EXPECT_THAT(
      [&] {
        backbone->layers()[0]->set_activation_plan({Recompute::kNothing, true});
      },
      ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("recompute = nothing with offload")));
  EXPECT_THAT([&] { backbone->norm->set_activation_plan({Recompute::kAll}); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("It has none")));
}

// Records when its layer is recomputed.
class RecomputationProbe : public TokenDispatcher {
 public:
  explicit RecomputationProbe(int& num_recomputations) : num_recomputations_(num_recomputations) {}
  std::unique_ptr<DispatchedTokens> dispatch(const at::Tensor& x, const at::Tensor& expert_ids,
                                             const at::Tensor& probs) const override {
    if (is_recomputing()) ++num_recomputations_;
    return LocalTokenDispatcher(4).dispatch(x, expert_ids, probs);
  }

 private:
  int& num_recomputations_;
};

// The number of recomputations of each layer in one step; `choose` may select the layers that are checkpointed.
std::vector<int> recomputations(const DecoderStageOptions& options,
                                const std::function<void(std::size_t index, DecoderLayer& layer)>& choose) {
  const auto backbone = make_module<Qwen3MoEModel>(test::tiny_moe(), options);
  const auto model = test::initialized(make_decoder_for_causal_lm(backbone));
  std::vector<int> counts(backbone->layers().size(), 0);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    DecoderLayer& layer = *backbone->layers()[i];
    choose(i, layer);
    static_cast<Qwen3MoELayer&>(layer).mlp->set_token_dispatcher(std::make_unique<RecomputationProbe>(counts[i]));
  }
  expect_same_bits(trained(model), trained(make_model(test::tiny_moe(), false)));
  return counts;
}

TEST(ActivationCheckpointing, Recomputes_every_layer_once_or_none) {
  const auto as_built = [](std::size_t, DecoderLayer&) {};
  EXPECT_THAT(recomputations({.checkpointing = true}, as_built), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(recomputations({}, as_built), ElementsAre(0, 0, 0, 0));
}

TEST(ActivationCheckpointing, Of_the_first_layers_leaves_the_others) {
  const LayerCheckpointing first_two(ActivationPlan{Recompute::kAll}, 2);
  EXPECT_THAT(recomputations({.checkpointing = first_two}, [](std::size_t, DecoderLayer&) {}), ElementsAre(1, 1, 0, 0));
}

TEST(ActivationCheckpointing, Is_chosen_layer_by_layer) {
  const auto odd_layers = [](std::size_t i, DecoderLayer& layer) { layer.set_activation_checkpointing(i % 2 == 1); };
  EXPECT_THAT(recomputations({}, odd_layers), ElementsAre(0, 1, 0, 1));
}

}  // namespace
}  // namespace d9d::activation_checkpointing_test
