// The families of d9d/models/families.h for tests that do not know their types. Each is compared with transformers
// (tests/oracle), divided into stages and recomputed (tests/models/decoder), and trained over every layout
// (tests/layout). A new family needs its tiny models in decoder_families.cpp.
//
// Example
//   for (const DecoderFamily& family : decoder_families()) {
//     const auto model = make_decoder_for_causal_lm(family.make_small({.num_layers = 2}, {}));
//   }
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/dtype.h"
#include "d9d/blocks/head/head_config.h"
#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/models/decoder/pre_norm_decoder.h"

namespace d9d::test {

// Sizes of a decoder that is small enough for many runs. A family ignores sizes that it does not have.
struct SmallDecoder {
  std::int64_t num_layers = 4;
  std::int64_t hidden_size = 16;
  std::int64_t intermediate_size = 12;  // of one expert
  std::int64_t num_attention_heads = 2;
  std::int64_t num_key_value_heads = 1;
  std::int64_t head_dim = 8;
  std::int64_t max_position_ids = 16;
  std::int64_t vocabulary_size = 23;  // in two splits, the second of three ids
  bool ties_embeddings = false;
  std::int64_t num_virtual_layers_pre = 0;  // see PreNormDecoderConfig::layers
  std::int64_t num_virtual_layers_post = 0;
  // For families with experts.
  std::int64_t num_experts = 4;
  std::int64_t experts_top_k = 2;
  std::int64_t num_dense_layers = 0;  // the first layers, which have no experts
  double auxiliary_loss_coefficient = 0.0;
  double bias_update_rate = 0.0;
};

// The parameter record of a family for these sizes.
template <class Parameters>
[[nodiscard]] Parameters small_parameters(const SmallDecoder& sizes) {
  Parameters parameters;
  parameters.layer.hidden_size = sizes.hidden_size;
  parameters.layer.intermediate_size = sizes.intermediate_size;
  parameters.layer.num_attention_heads = sizes.num_attention_heads;
  parameters.layer.num_key_value_heads = sizes.num_key_value_heads;
  parameters.layer.head_dim = sizes.head_dim;
  parameters.num_hidden_layers = sizes.num_layers;
  parameters.max_position_ids = sizes.max_position_ids;
  parameters.split_vocab_size = {{"regular", sizes.vocabulary_size - 3}, {"added", 3}};
  parameters.split_vocab_order = {"regular", "added"};
  parameters.tie_word_embeddings = sizes.ties_embeddings;
  parameters.pipeline_num_virtual_layers_pre = sizes.num_virtual_layers_pre;
  parameters.pipeline_num_virtual_layers_post = sizes.num_virtual_layers_post;
  if constexpr (requires { parameters.layer.num_experts; }) {
    parameters.layer.num_experts = sizes.num_experts;
    parameters.layer.experts_top_k = sizes.experts_top_k;
    parameters.layer.router_auxiliary_loss_coefficient = sizes.auxiliary_loss_coefficient;
    parameters.layer.router_bias_update_rate = sizes.bias_update_rate;
    if (sizes.num_dense_layers > 0) {
      auto& dense = parameters.layer.dense_layers.emplace();
      dense.intermediate_size = sizes.intermediate_size;
      for (std::int64_t i = 0; i < sizes.num_dense_layers; ++i) dense.indices.push_back(i);
    }
  }
  return parameters;
}

// What a folder of d9d/models provides.
struct DecoderFamily {
  using Json = nlohmann::json;

  std::string name;  // of the folder
  bool has_experts = false;
  std::function<ModulePtr<PreNormDecoder>(const SmallDecoder& sizes, const DecoderStageOptions& options)> make_small;

  // Tiny models that transformers can make too: a suffix of the family's name, and keys of config.json.
  std::vector<std::pair<std::string, Json>> huggingface_variants;
  std::function<ModulePtr<DecoderBackbone>(const Json& config, const DecoderStageOptions& options)> make_backbone;
  std::function<StateMapper(const Json& config, const HeadConfig& head, const std::vector<std::string>& names)>
      from_huggingface;
  std::function<StateMapper(const Json& config, const HeadConfig& head)> to_huggingface;
  std::function<Json(const Json& config, const HeadConfig& head, Dtype dtype)> huggingface_config;
};

[[nodiscard]] const std::vector<DecoderFamily>& decoder_families();
[[nodiscard]] const DecoderFamily& decoder_family(const std::string& name);  // throws std::out_of_range

}  // namespace d9d::test
