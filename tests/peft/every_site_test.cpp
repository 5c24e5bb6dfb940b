// Adapters of embeddings, heads, routers and adopted torch::nn::Linear: each computes what its merged weight would, and
// its gradients are those that the chain rule makes of the merged weight's.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "d9d/base/check.h"
#include "d9d/blocks/embedding/split_token_embeddings.h"
#include "d9d/blocks/head/language_modelling_head.h"
#include "d9d/blocks/moe/router.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/modules/adopt.h"
#include "d9d/peft/adopted_linear.h"
#include "d9d/peft/inject.h"
#include "d9d/peft/merge.h"
#include "d9d/peft/merged_on_the_way.h"

#include "tests/peft/toy_model.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::every_site_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr std::int64_t kHidden = 6;
constexpr double kScale = 1.5;
const VocabularySplits kVocabulary{.sizes = {{"base", 7}, {"added", 4}}, .order = {"base", "added"}};
const PeftConfig kEverything =
    LoraConfig{.module_name_pattern = "embed|adopted|router\\.gate|score|head", .params = {.r = 2, .alpha = 3.0}};

torch::nn::Linear torch_linear() { return torch::nn::Linear(kHidden, kHidden); }

class Model : public Module {
 public:
  Model()
      : embed(register_module<SplitTokenEmbeddings>("embed", kVocabulary, kHidden)),
        adopted(register_module("adopted", adopt(torch_linear))),
        router(register_module<TopKRouter>("router",
                                           TopKRouterConfig{.hidden_size = kHidden, .num_experts = 3, .top_k = 3})),
        score(register_module<Linear>("score", LinearConfig{kHidden, 4, false, ParameterRole::kHead})),
        head(register_module<LanguageModellingHead>("head", kVocabulary, kHidden)) {}
  // A number to which each of the modules contributes.
  at::Tensor forward(const at::Tensor& ids) const {
    const at::Tensor x = at::tanh(adopted(embed(ids)));
    const at::Tensor probs = router(x.view({-1, kHidden})).probs.square().sum();
    const at::Tensor loss = head(x, LanguageModellingShared{.labels = ids.flip(1)}).cross_entropy.sum();
    return loss + head(x).square().mean() + score(x).square().sum() * (1 + probs);
  }

  const ModulePtr<SplitTokenEmbeddings> embed;
  const ModulePtr<Adopted<torch::nn::LinearImpl>> adopted;
  const ModulePtr<TopKRouter> router;
  const ModulePtr<Linear> score;
  const ModulePtr<LanguageModellingHead> head;
};

const at::Tensor kIds = at::tensor({0, 6, 7, 10, 8, 1, 6, 6}, at::kLong).view({2, 4});

std::map<std::string, at::Tensor> copies_of(const Module& model) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& [name, tensor] : model.state_dict()) copies.emplace(name, tensor.clone());
  return copies;
}

ModulePtr<Model> adapted_model() {
  auto model = make_module<Model>();
  (void)inject_peft(kEverything, *model);
  test::fill(*model);
  return model;
}

at::Tensor values_of(const ParameterPtr& parameter) { return parameter->local().detach(); }
at::Tensor gradient_of(const ParameterPtr& parameter) { return parameter->local().grad(); }

// weight: of the plain model, with the gradient of the merged weight.
void expect_chain_rule(const ParameterPtr& weight, const ParameterPtr& a, const ParameterPtr& b) {
  const at::Tensor merged = gradient_of(weight);
  EXPECT_TRUE(at::allclose(gradient_of(b), merged.matmul(values_of(a).t()) * kScale, 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(gradient_of(a), values_of(b).t().matmul(merged) * kScale, 1e-10, 1e-12));
}

TEST(EverySite, Trains_as_its_merged_weight_says) {
  const auto model = adapted_model();
  const auto plain = make_module<Model>();
  test::fill(*plain);
  {
    const auto twin = adapted_model();
    (void)merge_peft(*twin);
    for (const auto& [name, parameter] : plain->named_parameters()) parameter->copy_from(twin->state_dict().at(name));
  }
  const at::Tensor value = model(kIds), expected = plain(kIds);
  EXPECT_TRUE(at::allclose(value, expected, 1e-12, 1e-12));
  value.backward();
  expected.backward();
  for (const auto& [name, parameter] : model->named_parameters()) {
    EXPECT_EQ(gradient_of(parameter).defined(), is_adapter_parameter(name)) << name;
  }
  expect_chain_rule(plain->score->weight, model->score->adapter()->a->weight, model->score->adapter()->b->weight);
  const auto& gate = model->router->gate->adapter();
  expect_chain_rule(plain->router->gate->weight, gate->a->weight, gate->b->weight);
  const auto adopted = AdoptedLinear(*model->adopted.shared()).adapter();
  expect_chain_rule(AdoptedLinear(*plain->adopted.shared()).weight, adopted->a->weight, adopted->b->weight);

  at::Tensor of_head = at::zeros({2, kHidden}, at::kDouble), of_embedding = at::zeros({kHidden, 2}, at::kDouble);
  const auto& head = *model->head->adapter();
  const auto& embedding = *model->embed->adapter();
  for (std::size_t split = 0; split < 2; ++split) {
    const at::Tensor rows = gradient_of(plain->head->weights[split]), table = gradient_of(plain->embed->weights[split]);
    const ParameterPtr &b = head.b->weights[split], &a = embedding.a->weights[split];
    EXPECT_TRUE(at::allclose(gradient_of(b), rows.matmul(values_of(head.a->weight).t()) * kScale, 1e-10, 1e-12));
    of_head += values_of(b).t().matmul(rows) * kScale;
    EXPECT_TRUE(at::allclose(gradient_of(a), table.matmul(values_of(embedding.b->weight)) * kScale, 1e-10, 1e-12));
    of_embedding += table.t().matmul(values_of(a)) * kScale;
  }
  EXPECT_TRUE(at::allclose(gradient_of(head.a->weight), of_head, 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(gradient_of(embedding.b->weight), of_embedding, 1e-10, 1e-12));
}

TEST(EverySite, Names_factors_as_a_linear_does_with_one_for_each_split) {
  const auto model = make_module<Model>();
  EXPECT_THAT(inject_peft(kEverything, *model).trained,
              ElementsAre("embed.lora_A.base.weight", "embed.lora_A.added.weight", "embed.lora_B.weight",
                          "adopted.lora_A.weight", "adopted.lora_B.weight", "router.gate.lora_A.weight",
                          "router.gate.lora_B.weight", "score.lora_A.weight", "score.lora_B.weight",
                          "head.lora_A.weight", "head.lora_B.base.weight", "head.lora_B.added.weight"));
  for (const auto& [name, parameter] : model->named_parameters()) {
    EXPECT_EQ(is_adapter_parameter(name), parameter->requires_grad()) << name;
  }
}

TEST(EverySite, Begins_with_the_function_of_the_model) {
  const auto plain = make_module<Model>();
  const auto adapted = make_module<Model>();
  (void)inject_peft(kEverything, *adapted);
  for (const auto& model : {plain, adapted}) {
    model->to(at::kDouble);
    model->materialize(at::kCPU);
    model->reset_parameters(/*base_seed=*/3);
  }
  EXPECT_TRUE(at::equal(adapted(kIds), plain(kIds)));
  EXPECT_EQ(values_of(adapted->embed->adapter()->a->weights[0]).abs().max().item<double>(), 0.0);  // as peft
  EXPECT_GT(values_of(adapted->embed->adapter()->b->weight).abs().min().item<double>(), 0.0);
  EXPECT_EQ(values_of(adapted->head->adapter()->b->weights[0]).abs().max().item<double>(), 0.0);
}

TEST(EverySite, Is_merged_and_unmerged_bit_for_bit) {
  const auto model = adapted_model();
  const auto before = copies_of(*model);
  const at::Tensor expected = model(kIds);
  MergedPeft merged = merge_peft(*model);
  EXPECT_TRUE(at::allclose(model(kIds), expected, 1e-12, 1e-12));
  for (const auto& [name, parameter] : model->named_parameters()) EXPECT_THAT(name, Not(HasSubstr("lora")));
  merged.unmerge();
  const auto after = copies_of(*model);
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, tensor] : after) EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
  EXPECT_TRUE(at::equal(model(kIds), expected));
}

// plain: a model of the same modules without adapters, which gets what an export of the model with merged ones has.
void load_merged(Module& plain, const Module& model) {
  const StateMapper mapper = merged_on_the_way(adapters_of(model), mapper::identities_of_module(plain));
  std::map<std::string, at::Tensor> exported;
  for (const TensorSource& source : mapped_sources(mapper, tensors_of(model.state_dict()))) {
    exported.emplace(source.name, source.read().clone());
  }
  for (const auto& [name, parameter] : plain.named_parameters()) parameter->copy_from(exported.at(name));
}

TEST(EverySite, Is_merged_on_the_way_as_in_memory) {
  const auto model = adapted_model();
  const auto plain = make_module<Model>();
  test::fill(*plain);
  load_merged(*plain, *model);
  (void)merge_peft(*model);
  const auto merged = model->state_dict();
  for (const auto& [name, tensor] : plain->state_dict()) EXPECT_TRUE(at::equal(tensor, merged.at(name))) << name;
}

TEST(EverySite, Drops_what_A_of_a_head_or_an_adopted_linear_reads_but_nothing_of_an_embedding) {
  for (const char* const name : {"head", "adopted", "embed"}) {
    const auto model = make_module<Model>();
    const LoraConfig lora{.module_name_pattern = name, .params = {.r = 2, .alpha = 3.0, .dropout = 0.5}};
    (void)inject_peft(lora, *model);
    test::fill(*model);
    const at::Tensor trained = model(kIds);
    model->eval();
    EXPECT_EQ(at::allclose(trained, model(kIds), 1e-9), name == std::string("embed")) << name;
  }
}

TEST(TiedHead, Has_an_adapter_of_its_own_that_merging_refuses) {
  for (const char* const name : {"head", "model\\.embed_tokens"}) {
    Qwen3DenseParameters parameters = test::tiny_dense();
    parameters.tie_word_embeddings = true;
    const auto model = make_decoder_for_causal_lm(test::make_backbone(parameters));
    EXPECT_EQ(
        inject_peft(LoraConfig{.module_name_pattern = name, .params = {.r = 2, .alpha = 3.0}}, *model).adapted.size(),
        1);
    test::fill(*model);
    const auto before = copies_of(*model);
    EXPECT_THAT([&] { (void)merge_peft(*model); }, ThrowsMessage<ConfigError>(HasSubstr("are tied")));
    for (const auto& [key, tensor] : copies_of(*model)) EXPECT_TRUE(at::equal(tensor, before.at(key))) << key;
  }
}

TEST(TiedHead, Is_untied_where_adapters_are_merged_on_the_way) {
  Qwen3DenseParameters parameters = test::tiny_dense();
  const at::Tensor ids = at::tensor({0, 7, 21, 22}, at::kLong).view({1, 4});  // of both splits
  const auto output = [&](const ModulePtr<DecoderForCausalLM>& model) {
    const auto shared = DecoderForCausalLM::Shared{{at::arange(4).view({1, 4})}, {ids}};
    return std::get<DecoderOutput<LanguageModellingHead>>(model(SequenceInput{ids}, shared)).head.cross_entropy;
  };
  for (const char* const names : {"head", "model\\.embed_tokens", "head|model\\.embed_tokens", ".*q_proj"}) {
    parameters.tie_word_embeddings = true;
    const auto model = make_decoder_for_causal_lm(test::make_backbone(parameters));
    (void)inject_peft(LoraConfig{.module_name_pattern = names, .params = {.r = 2, .alpha = 3.0}}, *model);
    test::fill(*model);
    const bool is_untied = std::string(names) != ".*q_proj";
    EXPECT_EQ(adapters_of(*model).untied.size(), is_untied ? 2 : 0);
    parameters.tie_word_embeddings = !is_untied;
    const auto plain = make_decoder_for_causal_lm(test::make_backbone(parameters));
    test::fill(*plain);
    load_merged(*plain, *model);
    EXPECT_TRUE(at::allclose(output(plain), output(model), 1e-12, 1e-12)) << names;
  }
}

TEST(TiedHead, Alone_reads_the_embedding_of_the_last_stage_which_gets_no_adapter) {
  Qwen3DenseParameters parameters = test::tiny_dense();
  parameters.tie_word_embeddings = true;
  const auto adapted = [&](std::int64_t stage) {
    const auto model = make_decoder_for_causal_lm(
        test::make_backbone(parameters, {.stage = {.num_stages = 2, .current_stage = stage}}));
    const LoraConfig lora{.module_name_pattern = "model\\.embed_tokens", .params = {.r = 2, .alpha = 3.0}};
    const PeftInjection injected = inject_peft_into_stage(lora, *model);
    EXPECT_THAT(injected.unmatched, IsEmpty());
    return injected.adapted;
  };
  EXPECT_THAT(adapted(0), ElementsAre("model.embed_tokens"));
  EXPECT_THAT(adapted(1), IsEmpty());
}

// Whether the tied weights are trained, in one piece and on each of two stages.
TEST(TiedWeights, Are_trained_alike_on_all_stages) {
  struct Case {
    PeftConfig method;
    bool is_trained;
  };
  const auto lora = [](const char* name) {
    return PeftConfig(LoraConfig{.module_name_pattern = name, .params = {.r = 2, .alpha = 3.0}});
  };
  const auto tune = [](const char* name) { return PeftConfig(FullTuneConfig{.module_name_pattern = name}); };
  const PeftConfig norms = tune(".*norm");
  for (const Case& each : {Case{StackConfig{{lora("head"), tune("model")}}, true},
                           Case{StackConfig{{lora("head"), tune("model\\.embed_tokens")}}, true},
                           Case{StackConfig{{lora("model\\.embed_tokens"), tune("")}}, false},
                           Case{StackConfig{{lora("model\\.embed_tokens"), tune("head"), norms}}, false},
                           Case{StackConfig{{tune("head"), norms}}, false}}) {
    Qwen3DenseParameters parameters = test::tiny_dense();
    parameters.tie_word_embeddings = true;
    for (const PipelineStageInfo& stage : {PipelineStageInfo{}, PipelineStageInfo{.num_stages = 2, .current_stage = 0},
                                           PipelineStageInfo{.num_stages = 2, .current_stage = 1}}) {
      const auto model = make_decoder_for_causal_lm(test::make_backbone(parameters, {.stage = stage}));
      (void)inject_peft_into_stage(each.method, *model);
      for (const auto& [name, parameter] : model->named_parameters()) {
        if (!name.starts_with("model.embed_tokens.token_embedding")) continue;
        EXPECT_EQ(parameter->requires_grad(), each.is_trained) << name << " of stage " << stage.current_stage;
      }
    }
  }
}

TEST(TiedWeights, Are_not_those_of_the_head) {
  Qwen3DenseParameters parameters = test::tiny_dense();
  parameters.tie_word_embeddings = true;
  const auto model = make_decoder_for_causal_lm(test::make_backbone(parameters));
  EXPECT_THAT([&] { (void)inject_peft(FullTuneConfig{.module_name_pattern = "head"}, *model); },
              ThrowsMessage<ConfigError>(HasSubstr("'head' to match the whole name of a module of which it trains")));
}

TEST(AdoptedAdapter, Is_computed_again_in_backward) {
  std::vector<at::Tensor> gradients;
  for (const bool checkpoints : {false, true}) {
    const auto model = adapted_model();
    model->adopted->set_activation_checkpointing(checkpoints);
    model(kIds).backward();
    gradients.push_back(gradient_of(AdoptedLinear(*model->adopted.shared()).adapter()->a->weight));
  }
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
}

TEST(AdoptedAdapter, Is_refused_of_other_modules_of_torch) {
  struct Net : Module {
    Net() {
      register_module("norm", adopt([] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})); }));
      register_module("linear", adopt(torch_linear));
      register_module("two", adopt([] { return torch::nn::Sequential(torch_linear(), torch_linear()); }));
    }
  };
  const auto error_of = [](const char* pattern) {
    return [pattern] {
      return inject_peft(LoraConfig{.module_name_pattern = pattern, .params = {.r = 2, .alpha = 3.0}},
                         *make_module<Net>());
    };
  };
  EXPECT_THAT(error_of("norm|linear"),
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("got 'norm'"), HasSubstr("adopted"))));
  EXPECT_THAT(error_of("two"), ThrowsMessage<ConfigError>(HasSubstr("got 'two'")));
  EXPECT_THAT(error_of("two\\.0"), ThrowsMessage<ConfigError>(HasSubstr("got 'two.0'")));
  EXPECT_THAT(error_of("linear")().adapted, ElementsAre("linear"));
}

}  // namespace
}  // namespace d9d::every_site_test
