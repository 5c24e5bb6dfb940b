#include "d9d/blocks/head/language_modelling_head.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"

#include "tests/support/block_oracle.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::language_modelling_head_test {
namespace {

using kernels::LinearCrossEntropyPreset;
using ::testing::HasSubstr;

constexpr std::int64_t kHidden = 6, kPositions = 5;

struct Gradients {
  at::Tensor hidden;
  std::vector<at::Tensor> weights;  // of the splits "near" and "far"
};

// Every softmax is 1e-14 and less over the split "far", whose rows are whole tiles of the filter.
Gradients gradients_with(const CausalLMHeadConfig& config) {
  const auto head = test::initialized(make_module<LanguageModellingHead>(
      VocabularySplits{.sizes = {{"near", 64}, {"far", 64}}, .order = {"near", "far"}}, kHidden, config));
  head->to(at::kFloat);
  for (std::size_t split = 0; split < 2; ++split) {
    const at::NoGradGuard no_grad;
    head->weights[split]->local().select(1, 0).fill_(split == 0 ? 0 : -32);
  }
  const at::Tensor hidden = test::normal_leaf({1, kPositions, kHidden}, 1).detach().to(at::kFloat);
  hidden.select(2, 0).fill_(1);
  hidden.requires_grad_();
  const at::Tensor labels = at::arange(kPositions, at::kLong).unsqueeze(0);
  head(hidden, LanguageModellingShared{.labels = labels}).cross_entropy.sum().backward();
  return {.hidden = hidden.grad(), .weights = {head->weights[0]->local().grad(), head->weights[1]->local().grad()}};
}

bool is_zero(const at::Tensor& tensor) { return tensor.eq(0).all().item<bool>(); }

TEST(LanguageModellingHead, Leaves_out_of_gradients_what_its_preset_says) {
  const Gradients whole = gradients_with({});
  EXPECT_FALSE(is_zero(whole.weights[1]));
  for (const auto& [preset, name] : enum_names(LinearCrossEntropyPreset())) {
    SCOPED_TRACE(name);
    const Gradients actual = gradients_with({.preset = preset});
    const kernels::LinearCrossEntropyOptions expected = kernels::with_preset({}, preset, at::kFloat);
    EXPECT_EQ(is_zero(actual.weights[1]), expected.filter_eps && expected.filter_c_grad);
    EXPECT_TRUE(at::equal(actual.weights[0], whole.weights[0]));
    EXPECT_TRUE(at::allclose(actual.hidden, whole.hidden));
  }
}

TEST(CausalLMHeadConfig, Has_its_preset_from_json_by_name) {
  const auto parsed = [](const Json& json) {
    return std::get<CausalLMHeadConfig>(parse_record<HeadConfig>(json, ConfigPath{.keys = "head"})).preset;
  };
  EXPECT_EQ(parsed({{"kind", "causal_lm"}}), LinearCrossEntropyPreset::kCceExact);
  for (const auto& [preset, name] : enum_names(LinearCrossEntropyPreset())) {
    EXPECT_EQ(parsed({{"kind", "causal_lm"}, {"preset", name}}), preset);
    EXPECT_EQ(write_record(CausalLMHeadConfig{.preset = preset}).at("preset"), name);
  }
  EXPECT_EQ(json_schema<CausalLMHeadConfig>().at("properties").at("preset").at("default"), "cce_exact");
  EXPECT_EQ(json_schema<CausalLMHeadConfig>().at("properties").at("preset").at("enum").size(), 6);
  EXPECT_THAT(
      [&] {
        (void)parsed({{"kind", "causal_lm"}, {"preset", "torch_compile"}});
      },
      ::testing::ThrowsMessage<ConfigError>(::testing::AllOf(HasSubstr("head.preset"), HasSubstr("torch_compile"),
                                                             HasSubstr("cce_kahan_full_c_full_e"))));
}

}  // namespace
}  // namespace d9d::language_modelling_head_test
