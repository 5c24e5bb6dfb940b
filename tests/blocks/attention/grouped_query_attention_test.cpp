// Compares attention layers with those of transformers: Qwen3, Qwen2, Llama, Qwen3-Next, GPT-OSS, GPT-J.
#include "d9d/blocks/attention/grouped_query_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/deferred_gradients.h"
#include "d9d/modules/trained_leaves.h"

#include "tests/support/block_oracle.h"
#include "tests/support/compare.h"
#include "tests/support/io_faults.h"

namespace d9d::grouped_query_attention_test {
namespace {
using test::Tensors;
using ::testing::HasSubstr;
using Attention = ModulePtr<GroupedQueryAttention>;

// The sizes that the oracle uses.
GroupedQueryAttentionConfig qwen3(std::int64_t num_key_value_heads = 2) {
  return {.hidden_size = 24,
          .num_attention_heads = 4,
          .num_key_value_heads = num_key_value_heads,
          .head_dim = 8,
          .qk_norm_eps = 1e-5};
}

at::Tensor attend(const Attention& attention, const Tensors& inputs) {
  const auto mask = inputs.find("mask");
  return attention(inputs.at("x"), RotaryTables{inputs.at("cos"), inputs.at("sin")},
                   mask == inputs.end() ? std::optional<at::Tensor>() : mask->second);
}

void expect_equals_oracle_with(const std::optional<SdpaConfig>& backend, const std::string& name,
                               GroupedQueryAttentionConfig config) {
  SCOPED_TRACE(!backend ? "auto" : (std::holds_alternative<EagerSdpaConfig>(*backend) ? "eager" : "torch"));
  config.sdpa_backend = backend;
  test::expect_equals_oracle(
      name, [&] { return make_module<GroupedQueryAttention>(config); }, attend);
}

void expect_equals_oracle_on_both_backends(const std::string& name, const GroupedQueryAttentionConfig& config) {
  expect_equals_oracle_with(EagerSdpaConfig{}, name, config);
  expect_equals_oracle_with(TorchSdpaConfig{}, name, config);
}

TEST(Attention, With_grouped_heads_equals_qwen3) { expect_equals_oracle_on_both_backends("attention_gqa", qwen3()); }

TEST(Attention, With_a_key_head_for_each_query_head_equals_qwen3) {
  expect_equals_oracle_on_both_backends("attention_mha", qwen3(4));
}

TEST(Attention, With_one_key_head_equals_qwen3) { expect_equals_oracle_on_both_backends("attention_mqa", qwen3(1)); }

TEST(Attention, That_is_not_causal_sees_later_positions) {
  GroupedQueryAttentionConfig config = qwen3();
  config.is_causal = false;
  expect_equals_oracle_on_both_backends("attention_non_causal", config);
}

TEST(Attention, Keeps_what_a_boolean_mask_has_true) {
  GroupedQueryAttentionConfig config = qwen3();
  config.needs_attention_mask = true;
  expect_equals_oracle_on_both_backends("attention_boolean_mask_causal", config);
  config.is_causal = false;
  expect_equals_oracle_on_both_backends("attention_boolean_mask", config);
}

TEST(Attention, Adds_a_floating_mask_to_the_logits) {
  GroupedQueryAttentionConfig config = qwen3();
  config.needs_attention_mask = true;
  config.is_causal = false;
  expect_equals_oracle_on_both_backends("attention_additive_mask", config);
}

TEST(Attention, With_gate_partial_rotation_and_zero_centred_norms_equals_qwen3_next) {
  GroupedQueryAttentionConfig config = qwen3();
  config.qk_norm_zero_centered = true;
  config.rope_dim = 4;
  config.has_output_gate = true;
  expect_equals_oracle_on_both_backends("attention_gated", config);
}

GroupedQueryAttentionConfig qwen2() {
  GroupedQueryAttentionConfig config = qwen3();
  config.qk_norm_eps = std::nullopt;
  config.has_qkv_bias = true;
  return config;
}

TEST(Attention, With_biases_of_queries_keys_and_values_equals_qwen2) {
  expect_equals_oracle_on_both_backends("attention_qkv_bias", qwen2());
}

TEST(Attention, With_biases_of_all_projections_equals_llama) {
  GroupedQueryAttentionConfig config = qwen2();
  config.has_output_bias = true;
  expect_equals_oracle_on_both_backends("attention_bias", config);
}

TEST(Attention, Leaves_gradients_of_its_biases_to_the_second_half_of_a_split_backward) {
  const auto oracle = test::oracle_case("attention_qkv_bias", at::kDouble);
  const auto attention = make_module<GroupedQueryAttention>(qwen2());
  test::load(*attention, oracle.weights, at::kDouble);
  DeferredGradients deferred(trained_leaves(*attention));
  const at::Tensor output = attend(attention, oracle.inputs);
  WeightGradients waiting = deferred.keep([&] { test::backward(output, oracle.inputs.at("grad_out")); });
  test::expect_close("x", oracle.inputs.at("x").grad(), oracle.gradients.at("x"), test::tolerance("fp64"));
  for (const auto& [name, gradient] : test::gradients_of(*attention)) EXPECT_FALSE(gradient.defined()) << name;
  waiting.run();
  for (const auto& [name, gradient] : test::gradients_of(*attention)) {
    test::expect_close(name, gradient, oracle.gradients.at(name), test::tolerance("fp64"));
  }
}

TEST(Attention, With_sinks_equals_gpt_oss) {
  GroupedQueryAttentionConfig config = qwen3();
  config.qk_norm_eps = std::nullopt;
  config.has_sinks = true;
  expect_equals_oracle_with(EagerSdpaConfig{}, "attention_sinks", config);
  expect_equals_oracle_with(std::nullopt, "attention_sinks", config);
}

TEST(Attention, With_sinks_and_a_window_of_three_keys_equals_gpt_oss) {
  GroupedQueryAttentionConfig config = qwen3();
  config.qk_norm_eps = std::nullopt;
  config.has_sinks = true;
  config.window_left = 2;
  expect_equals_oracle_with(EagerSdpaConfig{}, "attention_sinks_window", config);
  expect_equals_oracle_with(std::nullopt, "attention_sinks_window", config);
}

TEST(Attention, With_a_softcap_of_nearly_nothing_weighs_all_keys_alike) {
  const auto oracle = test::oracle_case("attention_gqa", at::kFloat);
  const auto output = [&](const GroupedQueryAttentionConfig& config, const Tensors& weights) {
    const auto attention = make_module<GroupedQueryAttention>(config);
    test::load(*attention, weights, at::kFloat);
    return attend(attention, oracle.inputs);
  };
  Tensors without_queries = oracle.weights;
  without_queries.at("q_proj.weight") = at::zeros_like(without_queries.at("q_proj.weight"));
  GroupedQueryAttentionConfig capped = qwen3();
  capped.softcap = 1e-9;
  test::expect_close("output", output(capped, oracle.weights), output(qwen3(), without_queries),
                     test::tolerance("fp32"));
}

TEST(Attention, Of_packed_sequences_is_that_of_each) {
  GroupedQueryAttentionConfig config = qwen3();
  config.window_left = 3;
  config.softcap = 1.5;
  auto attention = make_module<GroupedQueryAttention>(config);
  const auto oracle = test::oracle_case("attention_gqa", at::kFloat);
  test::load(*attention, oracle.weights, at::kFloat);
  const at::Tensor x = oracle.inputs.at("x").narrow(0, 0, 1), cos = oracle.inputs.at("cos").narrow(0, 0, 1),
                   sin = oracle.inputs.at("sin").narrow(0, 0, 1);
  const std::int64_t length = x.size(1), first = length / 3;
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    const auto cut = [&](const at::Tensor& whole) { return whole.narrow(1, begin, end - begin); };
    return attention(cut(x), RotaryTables{cut(cos), cut(sin)});
  };
  const PackedSequences packed{
      .cu_seqlens = at::tensor({0, static_cast<int>(first), static_cast<int>(length)}, at::kInt),
      .max_length = length - first};
  const at::Tensor out = attention(x, RotaryTables{cos, sin}, std::nullopt, packed);
  test::expect_close("output", out, at::cat({part(0, first), part(first, length)}, 1), test::tolerance("fp32"));
}

// Halves a module's outputs and counts its calls.
struct HalvingHook : ModuleHook {
  void before_forward(Module&, const TensorRefs&) override {}
  void after_forward(Module&, const TensorRefs& outputs) override {
    ++num_calls;
    outputs.at(0).get() = outputs.at(0).get() / 2;
  }
  int num_calls = 0;
};

TEST(Attention, Calls_the_hooks_of_its_projections_and_norms) {
  const auto oracle = test::oracle_case("attention_gqa", at::kFloat);
  const auto attention = make_module<GroupedQueryAttention>(qwen3());
  test::load(*attention, oracle.weights, at::kFloat);
  const auto hook = std::make_shared<HalvingHook>();
  attention->k_norm->add_hook(hook);
  Tensors halved = oracle.weights;
  halved.at("k_norm.weight") = halved.at("k_norm.weight") / 2;
  const auto expected = make_module<GroupedQueryAttention>(qwen3());
  test::load(*expected, halved, at::kFloat);
  test::expect_close("output", attend(attention, oracle.inputs), attend(expected, oracle.inputs),
                     test::tolerance("fp32"));
  EXPECT_EQ(hook->num_calls, 1);

  for (const auto& projection : {attention->q_proj, attention->k_proj, attention->v_proj}) projection->add_hook(hook);
  (void)attend(attention, oracle.inputs);
  EXPECT_EQ(hook->num_calls, 5);
}

// Tables of ones and zeros rotate nothing.
TEST(Attention, Without_rotation_needs_no_tables) {
  const auto oracle = test::oracle_case("attention_gqa", at::kDouble);
  const RotaryTables still{at::ones_like(oracle.inputs.at("cos")), at::zeros_like(oracle.inputs.at("sin"))};
  Tensors without_norms = oracle.weights;
  std::erase_if(without_norms, [](const auto& named) { return named.first.find("norm") != std::string::npos; });
  for (const bool checkpoints : {false, true}) {
    for (const std::optional<double> eps : {std::optional(1e-5), std::optional<double>()}) {
      GroupedQueryAttentionConfig config = qwen3();
      config.qk_norm_eps = eps;
      const auto output = [&](std::optional<std::int64_t> rope_dim, const RotaryTables& tables) {
        config.rope_dim = rope_dim;
        const auto attention = make_module<GroupedQueryAttention>(config);
        test::load(*attention, eps ? oracle.weights : without_norms, at::kDouble);
        attention->set_activation_checkpointing(checkpoints);
        const at::Tensor x = oracle.inputs.at("x").detach().requires_grad_();
        const at::Tensor out = attention(x, tables);
        test::backward(out, oracle.inputs.at("grad_out"));
        return std::pair(out, x.grad());
      };
      const auto [out, grad] = output(0, {});
      const auto [expected, expected_grad] = output(std::nullopt, still);
      test::expect_close("output", out, expected, test::tolerance("fp64"));
      test::expect_close("x", grad, expected_grad, test::tolerance("fp64"));
    }
  }
}

TEST(Attention, Names_missing_tables) {
  const auto attention = make_module<GroupedQueryAttention>(qwen3());
  const auto oracle = test::oracle_case("attention_gqa", at::kFloat);
  test::load(*attention, oracle.weights, at::kFloat);
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)attention(oracle.inputs.at("x"), RotaryTables{}); }),
              HasSubstr("expected rotary tables, got none. Build the layer with rope_dim = 0"));
}

TEST(Attention, Refuses_tables_that_rotate_other_features) {
  const auto oracle = test::oracle_case("attention_gqa", at::kFloat);
  const at::Tensor &cos = oracle.inputs.at("cos"), &sin = oracle.inputs.at("sin");
  GroupedQueryAttentionConfig config = qwen3();
  config.rope_dim = cos.size(-1) / 2;
  const auto half = make_module<GroupedQueryAttention>(config), whole = make_module<GroupedQueryAttention>(qwen3());
  for (const auto& attention : {half, whole}) test::load(*attention, oracle.weights, at::kFloat);
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                (void)half(oracle.inputs.at("x"), RotaryTables{cos, sin});
              }),
              HasSubstr("expected rotary tables of rope_dim = "));
  const RotaryTables narrow{cos.narrow(-1, 0, *config.rope_dim), sin.narrow(-1, 0, *config.rope_dim)};
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)whole(oracle.inputs.at("x"), narrow); }),
              HasSubstr("expected rotary tables of rope_dim = "));
}

TEST(Attention, Refuses_sinks_on_a_backend_without_them) {
  GroupedQueryAttentionConfig config = qwen3();
  config.has_sinks = true;
  config.sdpa_backend = TorchSdpaConfig{};
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)make_module<GroupedQueryAttention>(config); }),
              HasSubstr("sinks"));
}

TEST(Attention, Rotates_neighbouring_features_in_the_interleaved_style_as_gpt_j) {
  const GroupedQueryAttentionConfig config{.hidden_size = 24,
                                           .num_attention_heads = 3,
                                           .num_key_value_heads = 3,
                                           .head_dim = 8,
                                           .rope_style = RotaryStyle::kInterleaved,
                                           .rope_dim = 4};
  test::expect_equals_oracle(
      "attention_interleaved", [&] { return make_module<GroupedQueryAttention>(config); },
      [](const Attention& attention, const Tensors& inputs) {
        auto rope = make_module<RotaryEmbeddingProvider>(
            RotaryEmbeddingConfig{.head_dim = 4, .max_position_ids = 32, .style = RotaryStyle::kInterleaved});
        test::load(*rope, {}, inputs.at("x").scalar_type());
        return attention(inputs.at("x"), rope(inputs.at("positions")));
      });
}

TEST(Attention, Refuses_a_mask_that_it_was_not_built_for) {
  auto attention = make_module<GroupedQueryAttention>(qwen3());
  test::load(*attention, test::oracle_case("attention_gqa", at::kFloat).weights, at::kFloat);
  EXPECT_THAT(test::message_of<ConfigError>(
                  [&] { (void)attend(attention, test::oracle_case("attention_boolean_mask", at::kFloat).inputs); }),
              HasSubstr("needs_attention_mask"));
}

TEST(Attention, Refuses_query_heads_that_are_no_multiple_of_key_heads) {
  EXPECT_THAT(test::message_of<ConfigError>([] { (void)make_module<GroupedQueryAttention>(qwen3(3)); }),
              HasSubstr("num_key_value_heads = 3, got 4"));
}

}  // namespace
}  // namespace d9d::grouped_query_attention_test
