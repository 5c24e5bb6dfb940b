#include "d9d/models/qwen3_dense/config.h"

#include "d9d/base/config/describe.h"
#include "d9d/models/decoder_config_checks.h"

namespace d9d {

void Qwen3DenseLayerParameters::validate(const ConfigPath& path) const {
  check_attention_heads(num_attention_heads, num_key_value_heads, head_dim, path);
}

void Qwen3DenseParameters::validate(const ConfigPath& path) const {
  check_split_vocab(split_vocab_size, split_vocab_order, path);
  if (rope_scaling) check_rope_scaling(*rope_scaling, layer.head_dim, path / "rope_scaling");
}

template const ValueType& json_type<Qwen3DenseParameters>();

}  // namespace d9d
