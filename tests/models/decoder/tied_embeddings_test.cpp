// The first loss of a model whose head is its embedding.
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "d9d/models/decoder/decoder_with_head.h"

#include "tests/support/decoder_families.h"

namespace d9d::tied_embeddings_test {
namespace {

TEST(TiedEmbeddings, Begin_with_logits_of_order_one) {
  constexpr std::int64_t kVocabulary = 512, kHidden = 64, kTokens = 128;
  for (const test::DecoderFamily& family : test::decoder_families()) {
    const auto model = make_decoder_for_causal_lm(family.make_small({.num_layers = 2,
                                                                     .hidden_size = kHidden,
                                                                     .intermediate_size = 96,
                                                                     .num_attention_heads = 4,
                                                                     .num_key_value_heads = 2,
                                                                     .head_dim = 16,
                                                                     .max_position_ids = kTokens,
                                                                     .vocabulary_size = kVocabulary,
                                                                     .ties_embeddings = true,
                                                                     .num_experts = 8,
                                                                     .experts_top_k = 2},
                                                                    {}));
    model->materialize(at::kCPU);
    model->reset_parameters(1);
    const at::Tensor ids = at::arange(kTokens).unsqueeze(0).mul(7).remainder(kVocabulary);
    const at::Tensor labels = ids.add(3).remainder(kVocabulary);
    const at::NoGradGuard no_grad;
    const DecoderForCausalLM::Shared shared{.sequence = {.position_ids = at::arange(kTokens).unsqueeze(0)},
                                            .head = {labels}};
    const auto output = model(SequenceStageInput(SequenceInput{ids}), shared);
    const at::Tensor losses = std::get<DecoderOutput<LanguageModellingHead>>(output).head.cross_entropy;
    const auto loss = losses.mean().item<double>();
    // Of logits of N(0, 1): log V + 1 / 2. With embeddings of N(0, 1) logits are of order 8.
    EXPECT_NEAR(loss, std::log(static_cast<double>(kVocabulary)) + 0.5, 0.3) << family.name;
  }
}

}  // namespace
}  // namespace d9d::tied_embeddings_test
