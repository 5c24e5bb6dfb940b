#include "tests/oracle/architectures.h"

#include <ATen/ATen.h>

#include "d9d/modules/models/decoder/decoder_with_head.h"
#include "d9d/modules/models/qwen3_dense/huggingface.h"
#include "d9d/modules/models/qwen3_dense/model.h"
#include "d9d/modules/models/qwen3_moe/huggingface.h"
#include "d9d/modules/models/qwen3_moe/model.h"

namespace d9d::test {
namespace {

using Json = nlohmann::json;

// The four functions that a family's huggingface.h has.
template <class Model, class Read, class From, class To, class Write>
DecoderFamily make_family(const Read& read, const From& from, const To& to, const Write& write) {
  return {.make_backbone = [=](const Json& config, const DecoderStageOptions& options) -> ModulePtr<DecoderBackbone> {
            return make_module<Model>(read(config), options);
          },
          .from_huggingface = [=](const Json& config, const HeadConfig& head,
                                  const std::vector<std::string>& names) { return from(read(config), head, names); },
          .to_huggingface = [=](const Json& config, const HeadConfig& head) { return to(read(config), head); },
          .huggingface_config = [=](const Json& config, const HeadConfig& head,
                                    Dtype dtype) { return write(read(config), head, dtype); }};
}

DecoderFamily qwen3_dense() {
  return make_family<Qwen3DenseModel>(
      qwen3_dense_parameters_from_huggingface,
      [](const auto&... args) { return qwen3_dense_from_huggingface(args...); },
      [](const auto&... args) { return qwen3_dense_to_huggingface(args...); }, qwen3_dense_huggingface_config);
}

DecoderFamily qwen3_moe() {
  return make_family<Qwen3MoEModel>(
      qwen3_moe_parameters_from_huggingface, [](const auto&... args) { return qwen3_moe_from_huggingface(args...); },
      [](const auto&... args) { return qwen3_moe_to_huggingface(args...); }, qwen3_moe_huggingface_config);
}

// Weights are drawn wide, so that attention and routing are not uniform.
constexpr const char* kSizes = R"({
  "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 67, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
  "initializer_range": 0.2, "tie_word_embeddings": false
})";

Json config_of(const char* model_type, const char* more) {
  Json config = Json::parse(kSizes);
  config.update(Json::parse(more));
  config["model_type"] = model_type;
  return config;
}

constexpr const char* kYarn = R"({"rope_parameters": {
  "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}})";
constexpr const char* kExperts = R"({"moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true})";
constexpr const char* kUnnormalizedExperts = R"({"moe_intermediate_size": 24, "num_experts": 6,
  "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": false})";

// A model whose shared inputs are positions and `shared`, run up to its head.
template <class Head>
typename Head::Output run(const ModulePtr<DecoderWithHead<Head>>& model, const TaskInputs& inputs,
                          const typename Head::Shared& shared) {
  const at::Tensor positions = at::arange(inputs.input_ids.size(1)).unsqueeze(0).expand_as(inputs.input_ids);
  const auto output = model(SequenceInput{inputs.input_ids},
                            typename DecoderWithHead<Head>::Shared{{.position_ids = positions}, shared});
  return std::get<DecoderOutput<Head>>(output).head;
}

TaskModel causal_lm(const ModulePtr<DecoderBackbone>& backbone) {
  const auto model = make_decoder_for_causal_lm(backbone);
  return {.module = model.shared(),
          .output =
              [model](const TaskInputs& inputs) {
                const at::Tensor& ids = inputs.input_ids;
                const at::Tensor positions = at::arange(ids.size(1)).unsqueeze(0).expand_as(ids);
                return model->head(
                    model->model(SequenceInput{ids}, SequenceShared{.position_ids = positions}).hidden_states);
              },
          .loss =
              [model](const TaskInputs& inputs) {
                return run(model, inputs, LanguageModellingShared{inputs.labels}).cross_entropy.sum() /
                       inputs.labels.ne(kIgnoreIndex).sum();
              }};
}

const ClassificationHeadConfig kClassification{.num_labels = 3};

TaskModel classification(const ModulePtr<DecoderBackbone>& backbone) {
  const auto model = make_decoder_for_classification(backbone, kClassification);
  const auto output = [model](const TaskInputs& inputs) {
    return run(model, inputs, PoolingShared{inputs.pooling_mask}).scores;
  };
  return {.module = model.shared(), .output = output, .loss = [output](const TaskInputs& inputs) {
            return at::cross_entropy_loss(output(inputs), inputs.labels);
          }};
}

const EmbeddingHeadConfig kEmbedding{.normalize = true};

TaskModel embedding(const ModulePtr<DecoderBackbone>& backbone) {
  const auto model = make_decoder_for_embedding(backbone, kEmbedding);
  const auto output = [model](const TaskInputs& inputs) {
    return run(model, inputs, PoolingShared{inputs.pooling_mask}).embeddings;
  };
  return {.module = model.shared(), .output = output, .loss = [output](const TaskInputs& inputs) {
            const at::Tensor embeddings = output(inputs);
            return at::mse_loss(embeddings, inputs.labels.to(embeddings.scalar_type()));
          }};
}

}  // namespace

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> table = {
      {"qwen3_dense_plain", qwen3_dense(), config_of("qwen3", "{}")},
      {"qwen3_dense_tied", qwen3_dense(), config_of("qwen3", R"({"tie_word_embeddings": true})")},
      {"qwen3_dense_yarn", qwen3_dense(), config_of("qwen3", kYarn)},
      {"qwen3_moe_normalized", qwen3_moe(), config_of("qwen3_moe", kExperts)},
      {"qwen3_moe_unnormalized", qwen3_moe(), config_of("qwen3_moe", kUnnormalizedExperts)},
  };
  return table;
}

const std::vector<Task>& tasks() {
  static const std::vector<Task> table = {{"causal_lm", CausalLMHeadConfig{}, causal_lm},
                                          {"classification", kClassification, classification},
                                          {"embedding", kEmbedding, embedding}};
  return table;
}

}  // namespace d9d::test
