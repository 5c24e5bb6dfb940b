#include "d9d/models/huggingface/packed_qkv.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

namespace d9d {
namespace {

// The projections of a layer with their rows. parameter: "weight" or "bias".
std::vector<std::pair<std::string, std::int64_t>> separate(const DecoderSizes& sizes, const std::string& layer,
                                                           const std::string& parameter) {
  const std::int64_t q = sizes.num_attention_heads * sizes.head_dim, kv = sizes.num_key_value_heads * sizes.head_dim;
  return {{layer + "self_attn.q_proj." + parameter, q},
          {layer + "self_attn.k_proj." + parameter, kv},
          {layer + "self_attn.v_proj." + parameter, kv}};
}

// Calls map(separate(...), packed name) for the weights of each layer, and for the biases if there are any.
template <class Map>
StateMapper map_projections(const DecoderSizes& sizes, const std::string& backbone_prefix, bool has_biases,
                            const Map& map) {
  std::vector<StateMapper> mappers;
  for (std::int64_t i = 0; i < sizes.num_hidden_layers; ++i) {
    const std::string layer = cat(backbone_prefix, "layers.", i, ".");
    for (const std::string parameter : {"weight", "bias"}) {
      if (parameter == "bias" && !has_biases) continue;
      mappers.push_back(map(separate(sizes, layer, parameter), layer + kPackedQkv + parameter));
    }
  }
  return mapper::parallel(std::move(mappers));
}

}  // namespace

StateMapper pack_qkv(const DecoderSizes& sizes, const std::string& backbone_prefix, bool has_biases) {
  return map_projections(sizes, backbone_prefix, has_biases, [](const auto& projections, const std::string& packed) {
    std::vector<std::string> names;
    for (const auto& [name, rows] : projections) names.push_back(name);
    return mapper::concatenate(names, packed, 0);
  });
}

StateMapper unpack_qkv(const DecoderSizes& sizes, const std::string& backbone_prefix, bool has_biases) {
  return map_projections(sizes, backbone_prefix, has_biases, [](const auto& projections, const std::string& packed) {
    return mapper::split(packed, projections, 0);
  });
}

}  // namespace d9d
