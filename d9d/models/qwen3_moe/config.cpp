#include "d9d/models/qwen3_moe/config.h"

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"
#include "d9d/models/decoder_config_checks.h"

namespace d9d {

void Qwen3MoELayerParameters::validate(const ConfigPath& path) const {
  check_attention_heads(num_attention_heads, num_key_value_heads, head_dim, path);
  D9D_CHECK(experts_top_k <= num_experts, ConfigError, path, "expected experts_top_k <= num_experts = ", num_experts,
            ", got experts_top_k = ", experts_top_k, ". Change one of the two.");
}

template const ValueType& json_type<Qwen3MoEParameters>();

}  // namespace d9d
