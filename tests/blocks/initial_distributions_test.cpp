// The initial values of parameters: compares every parameter of every block with a closed form. Input and output sizes
// differ by a factor of at least 2 everywhere, so that a wrong fan-in is detected.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/blocks/attention/grouped_query_attention.h"
#include "d9d/blocks/embedding/split_token_embeddings.h"
#include "d9d/blocks/ffn/swiglu.h"
#include "d9d/blocks/head/classification_head.h"
#include "d9d/blocks/head/embedding_head.h"
#include "d9d/blocks/head/language_modelling_head.h"
#include "d9d/blocks/moe/moe_layer.h"

#include "tests/support/tiny_blocks.h"

namespace d9d::initial_distributions_test {
namespace {

struct Distribution {
  double mean;
  double variance;
  std::function<double(double x)> cumulative;  // null: the constant `mean`
  double bound = INFINITY;                     // of |x|
};

// U(-1/sqrt(in), 1/sqrt(in)).
Distribution fan_in(std::int64_t in) {
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  return {.mean = 0,
          .variance = bound * bound / 3,
          .cumulative = [bound](double x) { return std::clamp((x / bound + 1) / 2, 0.0, 1.0); },
          .bound = bound};
}
Distribution standard_normal() {
  return {.mean = 0, .variance = 1, .cumulative = [](double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }};
}
Distribution constant(double value) { return {.mean = value, .variance = 0, .cumulative = nullptr}; }

// The largest distance between the two distribution functions (Kolmogorov and Smirnov).
double distance(at::Tensor values, const Distribution& expected) {
  values = std::get<0>(values.sort());
  const auto n = static_cast<double>(values.numel());
  double largest = 0;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const double p = expected.cumulative(values.const_data_ptr<double>()[i]);
    largest = std::max({largest, p - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - p});
  }
  return largest;
}

void expect_distributed(const std::string& name, const at::Tensor& parameter, const Distribution& expected) {
  const at::Tensor values = parameter.detach().to(at::kDouble).flatten();
  if (!expected.cumulative) {
    EXPECT_TRUE(values.eq(expected.mean).all().item<bool>()) << name << " is not " << expected.mean << " everywhere";
    return;
  }
  const auto n = static_cast<double>(values.numel());
  ASSERT_GE(n, 200) << name << " is too small to say anything";
  const double mean_deviation = std::sqrt(expected.variance / n);
  EXPECT_NEAR(values.mean().item<double>(), expected.mean, 5 * mean_deviation) << name << ": mean";
  // A normal distribution's; a uniform's is smaller.
  const double variance_deviation = expected.variance * std::sqrt(2 / n);
  EXPECT_NEAR(values.var().item<double>(), expected.variance, 5 * variance_deviation) << name << ": variance";
  EXPECT_LE(values.abs().max().item<double>(), expected.bound) << name << ": bound";
  EXPECT_LE(distance(values, expected) * std::sqrt(n), 2.0) << name << ": shape";  // exceeded once in 1,500 draws
}

using Distributions = std::map<std::string, Distribution>;

// Every parameter must have a row, and every row a parameter.
void expect_distributions(Module& module, const Distributions& expected) {
  module.materialize(at::kCPU);
  module.reset_parameters(/*base_seed=*/1);
  for (const auto& [name, parameter] : module.named_parameters()) {
    const auto row = expected.find(name);
    if (row == expected.end()) {
      ADD_FAILURE() << name << " has no row in this test";
    } else {
      expect_distributed(name, parameter->local(), row->second);
    }
  }
  EXPECT_EQ(module.named_parameters().size(), expected.size());
}

TEST(InitialDistribution, Of_a_linear_depends_on_its_inputs) {
  expect_distributions(*make_module<Linear>(LinearConfig{64, 512, /*has_bias=*/true}),
                       {{"weight", fan_in(64)}, {"bias", fan_in(64)}});
  expect_distributions(*make_module<Linear>(LinearConfig{512, 64, /*has_bias=*/false}), {{"weight", fan_in(512)}});
}

TEST(InitialDistribution, Of_grouped_linears_depends_on_the_inputs_of_one_group) {
  expect_distributions(
      *make_module<GroupedLinear>(GroupedLinearConfig{.num_groups = 8, .in_features = 24, .out_features = 96}),
      {{"weight", fan_in(24)}});
}

TEST(InitialDistribution, Of_attention_is_that_of_its_linears_and_norms) {
  const GroupedQueryAttentionConfig config{.hidden_size = 32,
                                           .num_attention_heads = 8,
                                           .num_key_value_heads = 2,
                                           .head_dim = 48,
                                           .qk_norm_eps = 1e-6,
                                           .rope_dim = {},
                                           .has_output_gate = true,
                                           .has_sinks = true,
                                           .window_left = {},
                                           .window_right = {},
                                           .softcap = {},
                                           .sdpa_backend = {}};
  expect_distributions(*make_module<GroupedQueryAttention>(config), {{"q_proj.weight", fan_in(32)},
                                                                     {"k_proj.weight", fan_in(32)},
                                                                     {"v_proj.weight", fan_in(32)},
                                                                     {"o_proj.weight", fan_in(8 * 48)},
                                                                     {"gate_proj.weight", fan_in(32)},
                                                                     {"q_norm.weight", constant(1)},
                                                                     {"k_norm.weight", constant(1)},
                                                                     {"kernel.sinks", constant(0)}});
}

TEST(InitialDistribution, Of_a_norm_multiplies_by_one) {
  expect_distributions(*make_module<RMSNorm>(RMSNormConfig{.hidden_size = 16}), {{"weight", constant(1)}});
  expect_distributions(*make_module<RMSNorm>(RMSNormConfig{.hidden_size = 16, .zero_centered = true}),
                       {{"weight", constant(0)}});
}

TEST(InitialDistribution, Of_a_feed_forward_is_that_of_its_linears) {
  expect_distributions(
      *make_module<SwiGLU>(SwiGLUConfig{.hidden_size = 32, .intermediate_size = 160}),
      {{"gate_proj.weight", fan_in(32)}, {"up_proj.weight", fan_in(32)}, {"down_proj.weight", fan_in(160)}});
}

TEST(InitialDistribution, Of_a_mixture_of_experts_is_that_of_router_experts_and_shared_expert) {
  const auto moe = make_module<MoELayer>(
      MoELayerConfig{.hidden_size = 256,
                     .intermediate_size = 40,
                     .num_experts = 8,
                     .top_k = 2,
                     .shared_expert = SharedExpertParameters{.intermediate_size = 100, .enable_gate = true},
                     .grouped_mm_backend = {},
                     .expert_bias_update_rate = 1e-3});
  expect_distributions(*moe, {{"router.gate.weight", fan_in(256)},
                              {"grouped_experts.gate_proj.weight", fan_in(256)},
                              {"grouped_experts.up_proj.weight", fan_in(256)},
                              {"grouped_experts.down_proj.weight", fan_in(40)},
                              {"shared_expert.gate.weight", fan_in(256)},
                              {"shared_expert.expert.gate_proj.weight", fan_in(256)},
                              {"shared_expert.expert.up_proj.weight", fan_in(256)},
                              {"shared_expert.expert.down_proj.weight", fan_in(100)}});
  expect_distributed("router.expert_bias", moe->router->expert_bias->local, constant(0));
  expect_distributed("tokens_per_expert", moe->tokens_per_expert->local, constant(0));
}

const VocabularySplits kVocabulary{.sizes = {{"base", 700}, {"added", 20}}, .order = {"base", "added"}};

TEST(InitialDistribution, Of_embeddings_is_standard_normal) {
  expect_distributions(
      *make_module<SplitTokenEmbeddings>(kVocabulary, 24),
      {{"token_embedding.base.weight", standard_normal()}, {"token_embedding.added.weight", standard_normal()}});
}

TEST(InitialDistribution, Of_heads_depends_on_the_hidden_size) {
  expect_distributions(*make_module<LanguageModellingHead>(kVocabulary, 24),
                       {{"lm_head.base.weight", fan_in(24)}, {"lm_head.added.weight", fan_in(24)}});
  expect_distributions(*make_module<ClassificationHead>(ClassificationHeadConfig{.num_labels = 9}, 36),
                       {{"score.weight", fan_in(36)}});
  expect_distributions(*make_module<EmbeddingHead>(EmbeddingHeadConfig{.embedding_dim = 90}, 36),
                       {{"projection.weight", fan_in(36)}});
}

}  // namespace
}  // namespace d9d::initial_distributions_test
