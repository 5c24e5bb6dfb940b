// Compares several heads on one backbone with one model for each head.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/models/decoder/decoder_with_heads.h"

#include "tests/support/block_oracle.h"
#include "tests/support/compare.h"
#include "tests/support/io_faults.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::decoder_heads_test {
namespace {
using test::Tensors;
using test::tolerance;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const std::map<std::string, HeadConfig> kHeads = {{"lm", CausalLMHeadConfig{}},
                                                  {"intent", ClassificationHeadConfig{.num_labels = 3}}};
const at::Tensor kLastToken = at::one_hot(at::full({2}, 5, at::kLong), 6);

SequenceHeadsShared shared() {
  return {test::tiny_sequence(),
          {{"lm", LanguageModellingShared{test::tiny_labels()}}, {"intent", PoolingShared{kLastToken}}}};
}

ModulePtr<DecoderWithHeads> make_with_heads(const PipelineStageInfo& stage = {}) {
  return test::initialized(
      make_module<DecoderWithHeads>(test::make_backbone(test::tiny_moe(), {.stage = stage}), kHeads));
}

SequenceStageInput ids() { return SequenceInput{test::tiny_ids()}; }

const at::Tensor& cross_entropy(const DecoderHeadsOutput& output) {
  return std::get<LanguageModellingOutput>(output.heads.at("lm")).cross_entropy;
}
const at::Tensor& scores(const DecoderHeadsOutput& output) {
  return std::get<ClassificationOutput>(output.heads.at("intent")).scores;
}

TEST(DecoderWithHeads, Names_its_heads) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : make_with_heads()->state_dict()) {
    if (!name.starts_with("model.")) names.push_back(name);
  }
  EXPECT_THAT(names, UnorderedElementsAre("heads.intent.score.weight", "heads.lm.lm_head.regular.weight",
                                          "heads.lm.lm_head.added.weight"));
}

TEST(DecoderWithHeads, Equals_one_model_a_head) {
  const auto both = make_with_heads();
  const auto copied = [&](const auto& single, const std::string& head) {
    Tensors values;
    for (const auto& [name, tensor] : both->state_dict()) {
      const std::string prefix = "heads." + head + ".";
      if (name.starts_with("model.")) values.emplace(name, tensor);
      if (name.starts_with(prefix)) values.emplace("head." + name.substr(prefix.size()), tensor);
    }
    test::load(*single, values, at::kDouble);
    return single;
  };
  const auto lm = copied(make_decoder_for_causal_lm(test::make_backbone(test::tiny_moe())), "lm");
  const auto intent =
      copied(make_decoder_for_classification(test::make_backbone(test::tiny_moe()), {.num_labels = 3}), "intent");

  const auto output = std::get<DecoderHeadsOutput>(both(ids(), shared()));
  const auto lm_output = std::get<DecoderOutput<LanguageModellingHead>>(
      lm(ids(), DecoderForCausalLM::Shared{test::tiny_sequence(), {test::tiny_labels()}}));
  const auto intent_output = std::get<DecoderOutput<ClassificationHead>>(
      intent(ids(), DecoderForClassification::Shared{test::tiny_sequence(), {kLastToken}}));
  EXPECT_TRUE(at::equal(cross_entropy(output), lm_output.head.cross_entropy));
  EXPECT_TRUE(at::equal(scores(output), intent_output.head.scores));
  EXPECT_TRUE(at::equal(*output.auxiliary_loss, *lm_output.auxiliary_loss));

  (cross_entropy(output).sum() + scores(output).square().sum()).backward();
  lm_output.head.cross_entropy.sum().backward();
  intent_output.head.scores.square().sum().backward();
  const Tensors lm_gradients = test::gradients_of(*lm), intent_gradients = test::gradients_of(*intent);
  Tensors expected;
  for (const auto& [name, gradient] : lm_gradients) {
    if (name.starts_with("model.")) {
      expected.emplace(name, gradient + intent_gradients.at(name));
    } else {
      expected.emplace("heads.lm." + name.substr(5), gradient);
    }
  }
  expected.emplace("heads.intent.score.weight", intent_gradients.at("head.score.weight"));
  test::expect_all_close(test::gradients_of(*both), expected, tolerance("fp64"));
}

TEST(DecoderWithHeads, Hands_the_preset_of_the_loss_to_its_head) {
  const CausalLMHeadConfig config{.preset = kernels::LinearCrossEntropyPreset::kCceKahanFullC};
  EXPECT_EQ(make_decoder_for_causal_lm(test::make_backbone(test::tiny_moe()), config)->head->config.preset,
            config.preset);
  const auto many = make_module<DecoderWithHeads>(test::make_backbone(test::tiny_moe()),
                                                  std::map<std::string, HeadConfig>{{"lm", config}});
  EXPECT_EQ(std::get<ModulePtr<LanguageModellingHead>>(many->heads.at("lm"))->config.preset, config.preset);
}

TEST(DecoderWithHeads, Over_two_stages_has_the_bits_of_one) {
  const auto whole = std::get<DecoderHeadsOutput>(make_with_heads()(ids(), shared()));
  const auto transfer = make_with_heads({.num_stages = 2, .current_stage = 0})(ids(), shared());
  const auto output = std::get<DecoderHeadsOutput>(make_with_heads({.num_stages = 2, .current_stage = 1})(
      SequenceStageInput(std::get<SequenceTransfer>(transfer)), shared()));
  EXPECT_TRUE(at::equal(cross_entropy(output), cross_entropy(whole)));
  EXPECT_TRUE(at::equal(scores(output), scores(whole)));
}

TEST(DecoderWithHeads, Names_the_head_whose_shared_input_does_not_fit) {
  const auto model = make_with_heads();
  SequenceHeadsShared missing = shared(), wrong = shared();
  missing.heads.erase("intent");
  wrong.heads.at("intent") = LanguageModellingShared{test::tiny_labels()};
  for (const SequenceHeadsShared& heads_shared : {missing, wrong}) {
    EXPECT_THAT(test::message_of<ConfigError>([&] { (void)model(ids(), heads_shared); }), HasSubstr("'intent'"));
  }
}

}  // namespace
}  // namespace d9d::decoder_heads_test
