#include "tests/oracle/architectures.h"

#include <ATen/ATen.h>

#include "d9d/models/decoder/decoder_with_head.h"

namespace d9d::test {
namespace {

// Runs a model whose shared inputs are positions and `shared`, up to its head.
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
  static const std::vector<Architecture> table = [] {
    std::vector<Architecture> entries;
    for (const DecoderFamily& family : decoder_families()) {
      for (const auto& [variant, config] : family.huggingface_variants) {
        entries.push_back({family.name + "_" + variant, family, config});
      }
    }
    return entries;
  }();
  return table;
}

const std::vector<Architecture>& published_layers() {
  static const std::vector<Architecture> table = {
      {"qwen3_0_6b", decoder_family("qwen3_dense"), nlohmann::json::parse(R"({"model_type": "qwen3",
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 1, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 67, "max_position_embeddings": 40960,
        "rope_theta": 1000000, "rms_norm_eps": 1e-6, "initializer_range": 0.05, "tie_word_embeddings": true})")},
      {"qwen3_30b_a3b", decoder_family("qwen3_moe"), nlohmann::json::parse(R"({"model_type": "qwen3_moe",
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 1, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 67, "max_position_embeddings": 40960,
        "rope_theta": 1000000, "rms_norm_eps": 1e-6, "initializer_range": 0.05, "tie_word_embeddings": false,
        "moe_intermediate_size": 768, "num_experts": 12, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "norm_topk_prob": true})")},
      {"llama3_2_1b", decoder_family("llama3"), nlohmann::json::parse(R"({"model_type": "llama",
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 1, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 67, "max_position_embeddings": 131072,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, "rms_norm_eps": 1e-5,
        "initializer_range": 0.05, "tie_word_embeddings": true})")},
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
