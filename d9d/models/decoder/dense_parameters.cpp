#include "d9d/models/decoder/dense_parameters.h"

#include "d9d/base/config/describe.h"
#include "d9d/models/decoder_config_checks.h"

namespace d9d {

void DenseLayerParameters::validate(const ConfigPath& path) const {
  check_attention_heads(num_attention_heads, num_key_value_heads, head_dim, path);
}

template const ValueType& json_type<DenseParameters>();

}  // namespace d9d
