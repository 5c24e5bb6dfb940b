// Compares mixtures of experts with those of transformers, and tests their counts and load balancing.
#include "d9d/blocks/moe/moe_layer.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "d9d/core/autograd/checkpoint.h"

#include "tests/support/block_oracle.h"
#include "tests/support/compare.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::moe_layer_test {
namespace {
using test::Tensors;
using Layer = ModulePtr<MoELayer>;

// The sizes that the oracle uses.
MoELayerConfig sizes() { return {.hidden_size = 24, .intermediate_size = 12, .num_experts = 6, .top_k = 2}; }

void expect_equals_oracle(const std::string& name, const MoELayerConfig& config) {
  test::expect_equals_oracle(
      name, [&] { return make_module<MoELayer>(config); },
      [](const Layer& moe, const Tensors& inputs) { return moe(inputs.at("x")).hidden_states; });
}

Layer make_layer(const MoELayerConfig& config) { return test::initialized(make_module<MoELayer>(config)); }

const at::Tensor kInput = test::normal({2, 8, 24}, 1);

TEST(MoELayer, Equals_the_block_of_qwen3_moe) { expect_equals_oracle("moe", sizes()); }

TEST(MoELayer, Without_renormalisation_equals_the_block_of_qwen3_moe) {
  MoELayerConfig config = sizes();
  config.renormalize_probabilities = false;
  expect_equals_oracle("moe_unnormalized", config);
}

TEST(MoELayer, With_a_gated_shared_expert_equals_the_block_of_qwen3_5) {
  MoELayerConfig config = sizes();
  config.shared_expert = SharedExpertParameters{.intermediate_size = 10, .enable_gate = true};
  expect_equals_oracle("moe_shared_expert", config);
}

TEST(MoELayer, Gives_experts_without_tokens_gradients_of_zero) {
  MoELayerConfig config = sizes();
  config.num_experts = 64;
  expect_equals_oracle("moe_empty_experts", config);
  const auto& gradient = test::oracle_tensor("moe_empty_experts/grad/grouped_experts.up_proj.weight");
  EXPECT_TRUE(gradient.flatten(1).eq(0).all(1).any().item<bool>()) << "the oracle has no expert without tokens";
}

// With the auxiliary loss of the real positions.
void expect_auxiliary_loss_of_oracle(const std::string& name, const std::optional<at::Tensor>& real_positions) {
  MoELayerConfig config = sizes();
  config.auxiliary_loss_coefficient = 0.1;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    test::OracleCase oracle = test::oracle_case(name, dtype);
    auto moe = make_module<MoELayer>(config);
    test::load(*moe, oracle.weights, dtype);
    std::erase_if(oracle.gradients, [](const auto& gradient) { return gradient.first.starts_with("grouped"); });
    moe->grouped_experts->set_requires_grad(false);
    const at::Tensor loss = *moe(oracle.inputs.at("x"), real_positions).auxiliary_loss;
    test::expect_close("loss", loss, oracle.output, test::tolerance(dtype == at::kDouble ? "fp64" : "fp32"));
    test::backward(loss, oracle.inputs.at("grad_out"));
    test::expect_all_close(
        {{"x", oracle.inputs.at("x").grad()}, {"router.gate.weight", moe->router->gate->weight->local().grad()}},
        oracle.gradients, test::tolerance(dtype == at::kDouble ? "fp64" : "fp32"));
  }
}

TEST(MoELayer, Has_the_auxiliary_loss_of_transformers) {
  expect_auxiliary_loss_of_oracle("auxiliary_loss", std::nullopt);
}

TEST(MoELayer, Has_the_auxiliary_loss_of_transformers_with_an_attention_mask) {
  const std::int64_t row = test::oracle_case("auxiliary_loss_with_padding", at::kDouble).inputs.at("x").size(1);
  expect_auxiliary_loss_of_oracle("auxiliary_loss_with_padding", at::cat({at::arange(5), at::arange(row, row + 3)}));
}

// A token sequence of five positions in a batch of two rows of eight, and alone.
TEST(MoELayer, Does_with_padding_what_it_does_without) {
  MoELayerConfig config = sizes();
  config.auxiliary_loss_coefficient = 0.1;
  config.expert_bias_update_rate = 1e-3;
  config.shared_expert = SharedExpertParameters{.intermediate_size = 10, .enable_gate = true};
  for (const bool checkpointing : {false, true}) {
    const Layer padded = make_layer(config), alone = make_layer(config);
    padded->set_activation_checkpointing(checkpointing);
    const at::Tensor real = at::arange(3, 8), token_grads = test::normal({1, 5, 24}, 2);
    const at::Tensor x = kInput.clone().set_requires_grad(true);
    const at::Tensor tokens = kInput.reshape({16, 24}).narrow(0, 3, 5).unsqueeze(0).clone().set_requires_grad(true);
    const MoEOutput of_padded = padded(x, std::optional(real)), of_tokens = alone(tokens);
    const at::Tensor flat = of_padded.hidden_states.reshape({16, 24});
    EXPECT_TRUE(at::equal(flat.narrow(0, 3, 5), of_tokens.hidden_states[0]));
    EXPECT_EQ(test::largest_magnitude(flat.narrow(0, 0, 3)) + test::largest_magnitude(flat.narrow(0, 8, 8)), 0);
    EXPECT_TRUE(at::equal(*of_padded.auxiliary_loss, *of_tokens.auxiliary_loss));
    const auto differentiate = [&](const at::Tensor& hidden_states, const MoEOutput& output) {
      ((hidden_states * token_grads[0]).sum() + *output.auxiliary_loss).backward();
    };
    differentiate(flat.narrow(0, 3, 5), of_padded);
    differentiate(of_tokens.hidden_states[0], of_tokens);
    EXPECT_TRUE(at::equal(x.grad().reshape({16, 24}).narrow(0, 3, 5), tokens.grad()[0]));
    EXPECT_EQ(test::largest_magnitude(x.grad()[1]), 0);
    test::expect_all_close(test::gradients_of(*padded), test::gradients_of(*alone), test::tolerance("fp64"));
    EXPECT_TRUE(at::equal(padded->tokens_per_expert->local, alone->tokens_per_expert->local));
    EXPECT_EQ(alone->tokens_per_expert->local.sum().item<std::int64_t>(), 5 * 2);
  }
}

TEST(MoELayer, Of_nothing_but_padding_computes_nothing_and_has_gradients_of_zero) {
  MoELayerConfig config = sizes();
  config.auxiliary_loss_coefficient = 0.1;
  config.shared_expert = SharedExpertParameters{.intermediate_size = 10, .enable_gate = true};
  const Layer moe = make_layer(config);
  const MoEOutput output = moe(kInput, std::optional(at::empty({0}, at::kLong)));
  EXPECT_EQ(test::largest_magnitude(output.hidden_states), 0);
  EXPECT_EQ(output.auxiliary_loss->item<double>(), 0);
  (output.hidden_states.sum() + *output.auxiliary_loss).backward();
  for (const auto& [name, gradient] : test::gradients_of(*moe)) EXPECT_EQ(test::largest_magnitude(gradient), 0) << name;
}

TEST(MoELayer, Trains_its_router_when_input_and_experts_are_frozen) {
  std::vector<at::Tensor> gradients;
  for (const bool frozen : {false, true}) {
    const Layer moe = make_layer(sizes());
    moe->grouped_experts->set_requires_grad(!frozen);
    const at::Tensor x = kInput.clone().set_requires_grad(!frozen);
    test::backward(moe(x).hidden_states, test::normal(x.sizes(), 2));
    gradients.push_back(moe->router->gate->weight->local().grad());
  }
  ASSERT_TRUE(gradients[1].defined());
  EXPECT_GT(test::largest_magnitude(gradients[0]), 0);
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
}

TEST(MoELayer, Counts_the_tokens_of_each_expert_until_the_step_is_finished) {
  const Layer moe = make_layer(sizes());
  const at::Tensor chosen = moe->router(kInput.reshape({-1, 24})).expert_ids;
  const at::Tensor expected = at::bincount(chosen.reshape({-1}), {}, 6);
  (void)moe(kInput);
  EXPECT_TRUE(at::equal(moe->tokens_per_expert->local, expected));
  (void)moe(kInput);
  EXPECT_TRUE(at::equal(moe->tokens_per_expert->local, 2 * expected));
  moe->finish_step(StepOutcome::kUpdated);
  EXPECT_TRUE(moe->tokens_per_expert->local.eq(0).all().item<bool>());
  {
    const at::NoGradGuard no_grad;
    (void)moe(kInput);
  }
  EXPECT_TRUE(moe->tokens_per_expert->local.eq(0).all().item<bool>()) << "a forward without gradients was counted";
  moe->eval();
  (void)moe(kInput);
  EXPECT_TRUE(moe->tokens_per_expert->local.eq(0).all().item<bool>());
}

TEST(MoELayer, Counts_once_and_has_the_same_gradients_under_activation_checkpointing) {
  MoELayerConfig config = sizes();
  config.auxiliary_loss_coefficient = 0.1;
  std::vector<Tensors> results;
  for (const bool checkpointing : {false, true}) {
    const Layer moe = make_layer(config);
    moe->set_activation_checkpointing(checkpointing);
    const MoEOutput first = moe(kInput), second = moe(kInput * 2);  // both precede backward, as in a pipeline
    (first.hidden_states.square().sum() + *first.auxiliary_loss).backward();
    (second.hidden_states.square().sum() + *second.auxiliary_loss).backward();
    results.push_back(test::gradients_of(*moe));
    results.back().emplace("counts", moe->tokens_per_expert->local);
  }
  EXPECT_EQ(results[0].at("counts").sum().item<std::int64_t>(), 2 * 16 * 2);
  for (const auto& [name, tensor] : results[0]) EXPECT_TRUE(at::equal(tensor, results[1].at(name))) << name;
}

TEST(MoELayer, Moves_the_bias_of_busy_experts_down_and_of_idle_ones_up) {
  MoELayerConfig config = sizes();
  config.expert_bias_update_rate = 0.01;
  const Layer moe = make_layer(config);
  moe->tokens_per_expert->local.copy_(at::tensor({9, 0, 5, 5, 5, 6}, at::kLong));  // mean 5
  moe->finish_step(StepOutcome::kUpdated);
  const at::Tensor expected = at::tensor({-0.01, 0.01, 0.0, 0.0, 0.0, -0.01}, at::kFloat);
  EXPECT_TRUE(at::equal(moe->router->expert_bias->local, expected));
}

TEST(MoELayer, Forgets_the_counts_of_a_skipped_step_and_leaves_the_bias) {
  MoELayerConfig config = sizes();
  config.expert_bias_update_rate = 0.01;
  const Layer moe = make_layer(config);
  moe->tokens_per_expert->local.copy_(at::tensor({9, 0, 5, 5, 5, 6}, at::kLong));
  moe->finish_step(StepOutcome::kSkipped);
  EXPECT_TRUE(moe->router->expert_bias->local.eq(0).all().item<bool>());
  EXPECT_TRUE(moe->tokens_per_expert->local.eq(0).all().item<bool>());
}

TEST(MoELayer, Tells_the_tokens_of_each_expert_and_the_load_of_the_busiest) {
  const Layer moe = make_layer(sizes());
  moe->tokens_per_expert->local.copy_(at::tensor({9, 0, 5, 5, 5, 6}, at::kLong));  // mean 5
  const auto statistics = moe->step_statistics();
  EXPECT_EQ(statistics.at("expert_load_max").item<double>(), 9.0 / 5);
  EXPECT_TRUE(at::equal(statistics.at("tokens_per_expert"), at::tensor({9, 0, 5, 5, 5, 6}, at::kDouble)));
}

TEST(TopKRouter, Lets_the_bias_choose_without_changing_probabilities) {
  auto router = test::initialized(make_module<TopKRouter>(TopKRouterConfig{
      .hidden_size = 24, .num_experts = 6, .top_k = 2, .renormalize_probabilities = false, .has_expert_bias = true}));
  const at::Tensor x = kInput.reshape({-1, 24});
  EXPECT_FALSE(router(x).expert_ids.eq(3).any(1).all().item<bool>());
  router->expert_bias->local[3] = 10.0;
  const RoutedTokens routed = router(x);
  EXPECT_TRUE(routed.expert_ids.select(1, 0).eq(3).all().item<bool>());
  EXPECT_TRUE(at::allclose(routed.probs, at::softmax(routed.logits, -1).gather(1, routed.expert_ids), 1e-12, 1e-12));
}

// Sends every token to the expert after the chosen one.
struct ShiftingDispatcher : TokenDispatcher {
  std::unique_ptr<DispatchedTokens> dispatch(const at::Tensor& x, const at::Tensor& expert_ids,
                                             const at::Tensor& probs) const override {
    return LocalTokenDispatcher(6).dispatch(x, (expert_ids + 1).remainder(6), probs);
  }
};

TEST(MoELayer, Sends_tokens_where_a_dispatcher_of_its_own_says) {
  const Layer moe = make_layer(sizes()), shifted = make_layer(sizes());
  shifted->set_token_dispatcher(std::make_unique<ShiftingDispatcher>());
  for (const auto& [name, parameter] : shifted->grouped_experts->named_parameters()) {
    parameter->copy_from(parameter->local().detach().roll(1, 0));
  }
  EXPECT_TRUE(at::allclose(shifted(kInput).hidden_states, moe(kInput).hidden_states, 1e-12, 1e-12));
  shifted->set_token_dispatcher(std::make_unique<LocalTokenDispatcher>(6));
  EXPECT_FALSE(at::allclose(shifted(kInput).hidden_states, moe(kInput).hidden_states, 1e-3, 1e-3));
}

}  // namespace
}  // namespace d9d::moe_layer_test
