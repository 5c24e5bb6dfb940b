#include "d9d/models/qwen3_moe/config.h"

#include <algorithm>
#include <functional>

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"
#include "d9d/models/decoder_config_checks.h"

namespace d9d {

void Qwen3MoELayerParameters::validate(const ConfigPath& path) const {
  check_attention_heads(num_attention_heads, num_key_value_heads, head_dim, path);
  D9D_CHECK(experts_top_k <= num_experts, ConfigError, path, "expected experts_top_k <= num_experts = ", num_experts,
            ", got experts_top_k = ", experts_top_k, ". Change one of the two.");
}

void Qwen3MoELayerParameters::validate_layers(std::int64_t num_hidden_layers, const ConfigPath& path) const {
  if (!dense_layers) return;
  const std::vector<std::int64_t>& indices = dense_layers->indices;
  D9D_CHECK(!indices.empty(), ConfigError, path / "dense_layers" / "indices",
            "expected the index of a layer, got none. Leave dense_layers out if all layers have experts.");
  const bool is_ascending = std::ranges::adjacent_find(indices, std::greater_equal()) == indices.end();
  D9D_CHECK(is_ascending && indices.back() < num_hidden_layers, ConfigError, path / "dense_layers" / "indices",
            "expected ascending indices of layers below num_hidden_layers = ", num_hidden_layers, ", got ",
            Json(indices).dump(), ". Each layer has its index once.");
}

std::vector<Qwen3MoELayerRecord> qwen3_moe_layers(const Qwen3MoEParameters& parameters) {
  const Qwen3MoELayerParameters& layer = parameters.layer;
  std::vector<Qwen3MoELayerRecord> layers(static_cast<std::size_t>(parameters.num_hidden_layers), layer);
  if (!layer.dense_layers) return layers;
  const DenseLayerParameters dense = {.hidden_size = layer.hidden_size,
                                      .intermediate_size = layer.dense_layers->intermediate_size,
                                      .num_attention_heads = layer.num_attention_heads,
                                      .num_key_value_heads = layer.num_key_value_heads,
                                      .rms_norm_eps = layer.rms_norm_eps,
                                      .head_dim = layer.head_dim,
                                      .sdpa_backend = layer.sdpa_backend};
  for (const std::int64_t index : layer.dense_layers->indices) layers.at(static_cast<std::size_t>(index)) = dense;
  return layers;
}

template const ValueType& json_type<Qwen3MoEParameters>();

}  // namespace d9d
