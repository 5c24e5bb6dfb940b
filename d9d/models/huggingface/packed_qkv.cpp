#include "d9d/models/huggingface/packed_qkv.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

namespace d9d {
namespace {

// The three matrices of a layer with their rows.
std::vector<std::pair<std::string, std::int64_t>> separate(const DecoderSizes& sizes, const std::string& layer) {
  const std::int64_t q = sizes.num_attention_heads * sizes.head_dim, kv = sizes.num_key_value_heads * sizes.head_dim;
  return {{layer + "self_attn.q_proj.weight", q},
          {layer + "self_attn.k_proj.weight", kv},
          {layer + "self_attn.v_proj.weight", kv}};
}

template <class MapLayer>
StateMapper of_layers(const DecoderSizes& sizes, const std::string& backbone_prefix, const MapLayer& map_layer) {
  std::vector<StateMapper> mappers;
  for (std::int64_t i = 0; i < sizes.num_hidden_layers; ++i) {
    mappers.push_back(map_layer(cat(backbone_prefix, "layers.", i, ".")));
  }
  return mapper::parallel(std::move(mappers));
}

}  // namespace

StateMapper pack_qkv(const DecoderSizes& sizes, const std::string& backbone_prefix) {
  return of_layers(sizes, backbone_prefix, [&](const std::string& layer) {
    std::vector<std::string> names;
    for (const auto& [name, rows] : separate(sizes, layer)) names.push_back(name);
    return mapper::concatenate(names, layer + kPackedQkv, 0);
  });
}

StateMapper unpack_qkv(const DecoderSizes& sizes, const std::string& backbone_prefix) {
  return of_layers(sizes, backbone_prefix, [&](const std::string& layer) {
    return mapper::split(layer + kPackedQkv, separate(sizes, layer), 0);
  });
}

}  // namespace d9d
