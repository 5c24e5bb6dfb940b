// A vocabulary in several splits: compares the embedding and the language-modelling head with single matrices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/embedding/split_token_embeddings.h"
#include "d9d/blocks/head/language_modelling_head.h"
#include "d9d/models/decoder/decoder_with_head.h"

#include "tests/support/block_oracle.h"
#include "tests/support/compare.h"
#include "tests/support/io_faults.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::vocabulary_splits_test {
namespace {
using test::tolerance;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kHidden = 6;
// The splits have rows 0-6, 7-10 and 11-12.
const VocabularySplits kVocabulary{.sizes = {{"base", 7}, {"added", 2}, {"prompt", 4}},
                                   .order = {"base", "prompt", "added"}};
const at::Tensor kIds = at::tensor({0, 6, 7, 10, 11, 12, 3, 3}, at::kLong).reshape({2, 4});

// The splits concatenated, as one leaf.
at::Tensor joined(const std::vector<ParameterPtr>& weights) {
  std::vector<at::Tensor> parts;
  for (const ParameterPtr& weight : weights) parts.push_back(weight->local().detach());
  return at::cat(parts).set_requires_grad(true);
}

at::Tensor joined_gradients(const std::vector<ParameterPtr>& weights) {
  std::vector<at::Tensor> parts;
  for (const ParameterPtr& weight : weights) parts.push_back(weight->local().grad());
  return at::cat(parts);
}

ModulePtr<SplitTokenEmbeddings> make_embeddings(at::ScalarType dtype = at::kDouble) {
  return test::initialized(make_module<SplitTokenEmbeddings>(kVocabulary, kHidden), dtype);
}

TEST(SplitTokenEmbeddings, Equal_one_embedding_over_the_joined_table) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const auto embeddings = make_embeddings(dtype);
    const at::Tensor table = joined(embeddings->weights);
    const at::Tensor output = embeddings(kIds), expected = at::embedding(table, kIds);
    EXPECT_TRUE(at::equal(output, expected));
    test::backward(output, test::normal({2, 4, kHidden}, 1, dtype));
    test::backward(expected, test::normal({2, 4, kHidden}, 1, dtype));
    EXPECT_TRUE(at::equal(joined_gradients(embeddings->weights), table.grad()));
  }
}

TEST(SplitTokenEmbeddings, Train_one_part_alone) {
  const auto embeddings = make_embeddings();
  embeddings->set_requires_grad(false);
  embeddings->weights[1]->set_requires_grad(true);
  const at::Tensor table = joined(embeddings->weights);
  test::backward(embeddings(kIds), test::normal({2, 4, kHidden}, 1));
  test::backward(at::embedding(table, kIds), test::normal({2, 4, kHidden}, 1));
  EXPECT_FALSE(embeddings->weights[0]->local().grad().defined());
  EXPECT_FALSE(embeddings->weights[2]->local().grad().defined());
  EXPECT_TRUE(at::equal(embeddings->weights[1]->local().grad(), table.grad().slice(0, 7, 11)));
}

TEST(SplitTokenEmbeddings, Sum_the_gradient_of_a_frequent_token_in_float32) {
  for (const VocabularySplits& vocabulary : {kVocabulary, VocabularySplits{.sizes = {{"all", 13}}, .order = {"all"}}}) {
    const auto embeddings = test::initialized(make_module<SplitTokenEmbeddings>(vocabulary, kHidden), at::kBFloat16);
    const at::Tensor ids = at::arange(13 * 1000, at::kLong).remainder(13).reshape({4, -1});
    const at::Tensor grad = test::normal({4, 13 * 250, kHidden}, 1).abs().to(at::kBFloat16);
    embeddings(ids).backward(grad);
    const at::Tensor expected =
        at::zeros({13, kHidden}, at::kDouble).index_add(0, ids.flatten(), grad.to(at::kDouble).reshape({-1, kHidden}));
    const at::Tensor actual = joined_gradients(embeddings->weights).to(at::kDouble);
    EXPECT_LT((actual / expected - 1).abs().max().item<double>(), 1.0 / 256);  // one rounding
  }
}

TEST(SplitTokenEmbeddings, Name_an_id_outside_of_the_vocabulary) {
  const auto embeddings = make_embeddings();
  for (const std::int64_t id : {13, -1}) {
    EXPECT_THAT(test::message_of<ConfigError>([&] {
                  (void)embeddings(at::full({1, 1}, id, at::kLong));
                }),
                AllOf(HasSubstr("[0, 13)"), HasSubstr(std::to_string(id))));
  }
}

TEST(VocabularySplits, Name_the_split_that_does_not_fit) {
  const auto message = [](const VocabularySplits& vocabulary) {
    return test::message_of<ConfigError>([&] { vocabulary.validate(); });
  };
  EXPECT_NO_THROW(kVocabulary.validate());
  EXPECT_THAT(message({}), HasSubstr("at least one split"));
  EXPECT_THAT(message({.sizes = {{"a", 1}}, .order = {"a", "b"}}), HasSubstr("a size for split 'b'"));
  EXPECT_THAT(message({.sizes = {{"a", 0}}, .order = {"a"}}), HasSubstr("positive size for split 'a', got 0"));
  EXPECT_THAT(message({.sizes = {{"a", 1}}, .order = {"a", "a"}}), HasSubstr("'a' once"));
  EXPECT_THAT(message({.sizes = {{"a", 1}, {"b", 1}}, .order = {"a"}}), HasSubstr("'b' of split_vocab_size"));
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor is_kept = labels.ne(kIgnoreIndex);
  const at::Tensor chosen = at::where(is_kept, labels, 0).unsqueeze(-1);
  const at::Tensor log_probs = at::log_softmax(logits, -1).gather(-1, chosen).squeeze(-1);
  return at::where(is_kept, -log_probs, 0.0);
}

TEST(LanguageModellingHead, Equals_log_softmax_of_all_logits) {
  at::Tensor labels = kIds.clone();
  labels[0][1] = kIgnoreIndex;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const auto head = test::initialized(make_module<LanguageModellingHead>(kVocabulary, kHidden), dtype);
    const at::Tensor hidden = test::normal_leaf({2, 4, kHidden}, 2, dtype);
    const at::Tensor table = joined(head->weights).detach().to(at::kDouble).set_requires_grad(true);
    const at::Tensor wide_hidden = hidden.detach().to(at::kDouble).set_requires_grad(true);
    const at::Tensor loss = head(hidden, LanguageModellingShared{labels}).cross_entropy;
    const at::Tensor expected = cross_entropy(at::linear(wide_hidden, table), labels);
    test::backward(loss, test::normal({2, 4}, 3).to(dtype));
    test::backward(expected, test::normal({2, 4}, 3));
    test::expect_all_close({{"loss", loss},
                            {"hidden_states", hidden.grad()},
                            {"weights", joined_gradients(head->weights)},
                            {"logits", head(hidden)}},
                           {{"loss", expected.to(dtype)},
                            {"hidden_states", wide_hidden.grad().to(dtype)},
                            {"weights", table.grad().to(dtype)},
                            {"logits", at::linear(wide_hidden, table).to(dtype)}},
                           tolerance(dtype == at::kDouble ? "fp64" : "fp32"));
  }
}

TEST(LanguageModellingHead, Gives_exactly_zero_where_a_label_is_ignored) {
  const auto head = test::initialized(make_module<LanguageModellingHead>(kVocabulary, kHidden));
  at::Tensor labels = kIds.clone();
  labels[1].fill_(kIgnoreIndex);
  const at::Tensor hidden = test::normal_leaf({2, 4, kHidden}, 2);
  const at::Tensor loss = head(hidden, LanguageModellingShared{labels}).cross_entropy;
  loss.sum().backward();
  EXPECT_TRUE(loss[1].eq(0).all().item<bool>());
  EXPECT_TRUE(hidden.grad()[1].eq(0).all().item<bool>());
  EXPECT_TRUE(loss[0].gt(0).all().item<bool>());
}

TEST(LanguageModellingHead, Takes_a_batch_without_labels) {
  const auto head = test::initialized(make_module<LanguageModellingHead>(kVocabulary, kHidden));
  const at::Tensor hidden = test::normal_leaf({2, 4, kHidden}, 2);
  const at::Tensor loss =
      head(hidden, LanguageModellingShared{at::full({2, 4}, kIgnoreIndex, at::kLong)}).cross_entropy;
  loss.sum().backward();
  EXPECT_TRUE(loss.eq(0).all().item<bool>());
  EXPECT_TRUE(hidden.grad().eq(0).all().item<bool>());
  EXPECT_TRUE(joined_gradients(head->weights).eq(0).all().item<bool>());
}

test::Tensors trained_gradients(const ModulePtr<DecoderForCausalLM>& model) {
  const auto output =
      model(SequenceInput{test::tiny_ids()}, DecoderForCausalLM::Shared{test::tiny_sequence(), {test::tiny_labels()}});
  std::get<DecoderOutput<LanguageModellingHead>>(output).head.cross_entropy.sum().backward();
  return test::gradients_of(*model);
}

TEST(LanguageModellingHead, Tied_to_the_embedding_shares_its_parameters_and_adds_no_names) {
  Qwen3DenseParameters parameters = test::tiny_dense();
  const auto untied = test::initialized(make_decoder_for_causal_lm(test::make_backbone(parameters)));
  parameters.tie_word_embeddings = true;
  const auto tied = test::initialized(make_decoder_for_causal_lm(test::make_backbone(parameters)));
  EXPECT_EQ(tied->head->weights, tied->model->embedding_weights());
  const test::Tensors untied_state = untied->state_dict();
  EXPECT_EQ(tied->state_dict().size() + 2, untied_state.size());

  for (std::size_t i = 0; i < 2; ++i) {
    const at::Tensor weight = tied->head->weights[i]->local().detach();
    untied->model->embedding_weights()[i]->copy_from(weight);
    untied->head->weights[i]->copy_from(weight);
  }
  const test::Tensors tied_gradients = trained_gradients(tied);
  test::Tensors expected = trained_gradients(untied);
  for (const std::string split : {"regular", "added"}) {
    const std::string head_name = "head.lm_head." + split + ".weight";
    ASSERT_TRUE(expected.contains(head_name));
    EXPECT_FALSE(tied_gradients.contains(head_name));
    expected.at("model.embed_tokens.token_embedding." + split + ".weight").add_(expected.at(head_name));
    expected.erase(head_name);
  }
  test::expect_all_close(tied_gradients, expected, tolerance("fp64"));
}

}  // namespace
}  // namespace d9d::vocabulary_splits_test
