#include "d9d/models/qwen3_dense/config.h"

#include "d9d/base/config/describe.h"
#include "d9d/models/decoder_config_checks.h"

namespace d9d {

void Qwen3DenseLayerParameters::validate(const ConfigPath& path) const {
  check_attention_heads(num_attention_heads, num_key_value_heads, head_dim, path);
}

template const ValueType& json_type<Qwen3DenseParameters>();

}  // namespace d9d
