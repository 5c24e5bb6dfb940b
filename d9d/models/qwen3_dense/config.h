// Sizes of a dense Qwen3 decoder.
//
// Example
//   {"layer": {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
//              "rms_norm_eps": 1e-6, "head_dim": 128},
//    "num_hidden_layers": 28, "rope_base": 1000000, "max_position_ids": 40960,
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

namespace d9d {

struct Qwen3DenseLayerParameters {
  std::int64_t hidden_size = 1;
  std::int64_t intermediate_size = 1;
  std::int64_t num_attention_heads = 1;  // a multiple of num_key_value_heads
  std::int64_t num_key_value_heads = 1;
  double rms_norm_eps = 1e-6;
  std::int64_t head_dim = 2;                    // even
  std::optional<SdpaConfig> sdpa_backend = {};  // null: the best that fits the device

  void validate(const ConfigPath& path) const;

  static constexpr auto fields() {
    using Layer = Qwen3DenseLayerParameters;
    return record<Layer>(required("hidden_size", &Layer::hidden_size, at_least(1)),
                         required("intermediate_size", &Layer::intermediate_size, at_least(1)),
                         required("num_attention_heads", &Layer::num_attention_heads, at_least(1)),
                         required("num_key_value_heads", &Layer::num_key_value_heads, at_least(1)),
                         required("rms_norm_eps", &Layer::rms_norm_eps, at_least(0)),
                         required("head_dim", &Layer::head_dim, at_least(2)),
                         defaulted("sdpa_backend", &Layer::sdpa_backend));
  }
};

struct Qwen3DenseParameters {
  Qwen3DenseLayerParameters layer = {};
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
    using Model = Qwen3DenseParameters;
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

extern template const ValueType& json_type<Qwen3DenseParameters>();

}  // namespace d9d
