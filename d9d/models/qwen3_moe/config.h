// Sizes of a Qwen3 mixture-of-experts decoder.
//
// Example
//   {"layer": {"hidden_size": 2048, "intermediate_size": 768, "num_experts": 128, "experts_top_k": 8,
//              "num_attention_heads": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "head_dim": 128},
//    "num_hidden_layers": 48, "rope_base": 1000000, "max_position_ids": 40960,
//    "split_vocab_size": {"regular": 151643, "special": 293}, "split_vocab_order": ["regular", "special"]}
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "d9d/base/record.h"
#include "d9d/kernels/attention/sdpa_config.h"
#include "d9d/kernels/grouped_mm/grouped_mm_config.h"
#include "d9d/models/decoder/decoder_parameters.h"
#include "d9d/models/decoder/dense_parameters.h"

namespace d9d {

// Layers with a dense feed-forward in place of experts.
struct Qwen3MoEDenseLayers {
  std::vector<std::int64_t> indices = {};  // of the whole model, ascending
  std::int64_t intermediate_size = 1;      // inner width of their feed-forward

  static constexpr auto fields() {
    using Layers = Qwen3MoEDenseLayers;
    return record<Layers>(required("indices", &Layers::indices, at_least(0)),
                          required("intermediate_size", &Layers::intermediate_size, at_least(1)));
  }
};

struct Qwen3MoELayerParameters {
  std::int64_t hidden_size = 1;                    // width of the residual stream
  std::int64_t intermediate_size = 1;              // of one expert
  std::int64_t num_experts = 1;                    // of each layer
  std::int64_t experts_top_k = 1;                  // experts a token, at most num_experts
  std::int64_t num_attention_heads = 1;            // a multiple of num_key_value_heads
  std::int64_t num_key_value_heads = 1;            // heads of keys and values
  double rms_norm_eps = 1e-6;                      // added to the mean square in norms
  std::int64_t head_dim = 2;                       // even
  bool router_renormalize_probabilities = true;    // the chosen experts' probabilities add up to one
  double router_auxiliary_loss_coefficient = 0.0;  // of the load-balancing loss; 0: none
  // Update rate of loss-free balancing, applied in each step; 0: the router has no bias.
  double router_bias_update_rate = 0.0;
  std::optional<Qwen3MoEDenseLayers> dense_layers = {};    // null: all layers have experts
  std::optional<SdpaConfig> sdpa_backend = {};             // null: the best that fits the device
  std::optional<GroupedMMConfig> grouped_mm_backend = {};  // null: the best that fits the device

  void validate(const ConfigPath& path) const;
  void validate_layers(std::int64_t num_hidden_layers, const ConfigPath& path) const;

  static constexpr auto fields() {
    using Layer = Qwen3MoELayerParameters;
    return record<Layer>(
        required("hidden_size", &Layer::hidden_size, at_least(1)),
        required("intermediate_size", &Layer::intermediate_size, at_least(1)),
        required("num_experts", &Layer::num_experts, at_least(1)),
        required("experts_top_k", &Layer::experts_top_k, at_least(1)),
        required("num_attention_heads", &Layer::num_attention_heads, at_least(1)),
        required("num_key_value_heads", &Layer::num_key_value_heads, at_least(1)),
        required("rms_norm_eps", &Layer::rms_norm_eps, greater_than(0)),
        required("head_dim", &Layer::head_dim, at_least(2)),
        defaulted("router_renormalize_probabilities", &Layer::router_renormalize_probabilities),
        defaulted("router_auxiliary_loss_coefficient", &Layer::router_auxiliary_loss_coefficient, at_least(0)),
        defaulted("router_bias_update_rate", &Layer::router_bias_update_rate, at_least(0)),
        defaulted("dense_layers", &Layer::dense_layers), defaulted("sdpa_backend", &Layer::sdpa_backend),
        defaulted("grouped_mm_backend", &Layer::grouped_mm_backend));
  }
};

using Qwen3MoEParameters = DecoderParameters<Qwen3MoELayerParameters>;

// The record of one layer, whose type decides the layer's class.
using Qwen3MoELayerRecord = std::variant<Qwen3MoELayerParameters, DenseLayerParameters>;

// One record for each layer of the whole model.
[[nodiscard]] std::vector<Qwen3MoELayerRecord> qwen3_moe_layers(const Qwen3MoEParameters& parameters);

extern template const ValueType& json_type<Qwen3MoEParameters>();

}  // namespace d9d
