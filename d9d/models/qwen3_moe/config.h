// Sizes of a Qwen3 mixture-of-experts decoder.
//
// Example
//   {"layer": {"hidden_size": 2048, "intermediate_size": 768, "num_experts": 128, "experts_top_k": 8,
//              "num_attention_heads": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "head_dim": 128},
//    "num_hidden_layers": 48, "rope_base": 1000000, "max_position_ids": 40960,
//    "split_vocab_size": {"regular": 151643, "special": 293}, "split_vocab_order": ["regular", "special"]}
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "d9d/base/record.h"
#include "d9d/blocks/positional/rope_scaling_config.h"
#include "d9d/kernels/attention/sdpa_config.h"
#include "d9d/kernels/grouped_mm/grouped_mm_config.h"

namespace d9d {

struct Qwen3MoELayerParameters {
  std::int64_t hidden_size = 1;
  std::int64_t intermediate_size = 1;  // of one expert
  std::int64_t num_experts = 1;
  std::int64_t experts_top_k = 1;        // experts a token, at most num_experts
  std::int64_t num_attention_heads = 1;  // a multiple of num_key_value_heads
  std::int64_t num_key_value_heads = 1;
  double rms_norm_eps = 1e-6;
  std::int64_t head_dim = 2;                               // even
  bool router_renormalize_probabilities = true;            // the chosen experts' probabilities add up to one
  double router_auxiliary_loss_coefficient = 0.0;          // of the load-balancing loss; 0: none
  double router_bias_update_rate = 0.0;                    // of loss-free balancing, a step; 0: the router has no bias
  std::optional<SdpaConfig> sdpa_backend = {};             // null: the best that fits the device
  std::optional<GroupedMMConfig> grouped_mm_backend = {};  // null: the best that fits the device

  void validate(const ConfigPath& path) const;

  static constexpr auto fields() {
    using Layer = Qwen3MoELayerParameters;
    return record<Layer>(
        required("hidden_size", &Layer::hidden_size, at_least(1)),
        required("intermediate_size", &Layer::intermediate_size, at_least(1)),
        required("num_experts", &Layer::num_experts, at_least(1)),
        required("experts_top_k", &Layer::experts_top_k, at_least(1)),
        required("num_attention_heads", &Layer::num_attention_heads, at_least(1)),
        required("num_key_value_heads", &Layer::num_key_value_heads, at_least(1)),
        required("rms_norm_eps", &Layer::rms_norm_eps, at_least(0)),
        required("head_dim", &Layer::head_dim, at_least(2)),
        defaulted("router_renormalize_probabilities", &Layer::router_renormalize_probabilities),
        defaulted("router_auxiliary_loss_coefficient", &Layer::router_auxiliary_loss_coefficient, at_least(0)),
        defaulted("router_bias_update_rate", &Layer::router_bias_update_rate, at_least(0)),
        defaulted("sdpa_backend", &Layer::sdpa_backend), defaulted("grouped_mm_backend", &Layer::grouped_mm_backend));
  }
};

struct Qwen3MoEParameters {
  Qwen3MoELayerParameters layer = {};
  std::int64_t num_hidden_layers = 1;
  std::int64_t rope_base = 10000;
  std::int64_t max_position_ids = 1;
  std::map<std::string, std::int64_t> split_vocab_size = {};  // rows of each part of the vocabulary
  std::vector<std::string> split_vocab_order = {};            // every part once; token ids count through in this order
  std::int64_t pipeline_num_virtual_layers_pre = 0;           // layers' worth of work that the embedding counts for
  std::int64_t pipeline_num_virtual_layers_post = 0;          // the same for the head
  bool tie_word_embeddings = false;                           // the causal LM head uses the embedding's weights
  std::optional<RopeScalingConfig> rope_scaling = {};

  void validate(const ConfigPath& path) const;

  static constexpr auto fields() {
    using Model = Qwen3MoEParameters;
    return record<Model>(
        required("layer", &Model::layer), required("num_hidden_layers", &Model::num_hidden_layers, at_least(1)),
        required("rope_base", &Model::rope_base, at_least(1)),
        required("max_position_ids", &Model::max_position_ids, at_least(1)),
        required("split_vocab_size", &Model::split_vocab_size, at_least(1)),
        required("split_vocab_order", &Model::split_vocab_order),
        defaulted("pipeline_num_virtual_layers_pre", &Model::pipeline_num_virtual_layers_pre, at_least(0)),
        defaulted("pipeline_num_virtual_layers_post", &Model::pipeline_num_virtual_layers_post, at_least(0)),
        defaulted("tie_word_embeddings", &Model::tie_word_embeddings), defaulted("rope_scaling", &Model::rope_scaling));
  }
};

extern template const ValueType& json_type<Qwen3MoEParameters>();

}  // namespace d9d
