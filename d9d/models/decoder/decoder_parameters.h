// Sizes of a decoder whose layers are described by `Layer`, a record with `head_dim`. A record that says which layers
// differ has validate_layers(num_hidden_layers, path) too, and its family a function that returns a record for each
// layer (qwen3_moe_layers()).
//
// Example
//   using MyModelParameters = DecoderParameters<MyLayerParameters>;
//   {"layer": {...}, "num_hidden_layers": 28, "rope_base": 1000000, "max_position_ids": 40960,
//    "split_vocab_size": {"regular": 151643, "special": 293}, "split_vocab_order": ["regular", "special"]}
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "d9d/base/config/config_path.h"
#include "d9d/base/record.h"
#include "d9d/blocks/positional/rope_scaling_config.h"
#include "d9d/models/decoder_config_checks.h"

namespace d9d {

template <class Layer>
struct DecoderParameters {
  Layer layer = {};                                           // sizes of each layer
  std::int64_t num_hidden_layers = 1;                         // layers of the whole model
  std::int64_t rope_base = 10000;                             // base of the rotary frequencies
  std::int64_t max_position_ids = 1;                          // longest sequence
  std::map<std::string, std::int64_t> split_vocab_size = {};  // rows of each part of the vocabulary
  std::vector<std::string> split_vocab_order = {};            // every part once; token ids count through in this order
  std::int64_t pipeline_num_virtual_layers_pre = 0;           // layers' worth of work that the embedding counts for
  std::int64_t pipeline_num_virtual_layers_post = 0;          // the same for the head
  bool tie_word_embeddings = false;                           // the causal LM head uses the embedding's weights
  // For contexts longer than those of the original training; null: none.
  std::optional<RopeScalingConfig> rope_scaling = {};

  void validate(const ConfigPath& path) const {
    check_split_vocab(split_vocab_size, split_vocab_order, path);
    if constexpr (requires { layer.validate_layers(num_hidden_layers, path); }) {
      layer.validate_layers(num_hidden_layers, path / "layer");
    }
    if (rope_scaling) check_rope_scaling(*rope_scaling, layer.head_dim, path / "rope_scaling");
  }

  static constexpr auto fields() {
    using Model = DecoderParameters;
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

}  // namespace d9d
