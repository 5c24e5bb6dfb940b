// Rules that the sizes of every decoder obey. Each throws ConfigError; `path` is that of the record.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "d9d/base/record.h"

namespace d9d {

// Query heads share key-value heads evenly, and rotary pairs fill a head.
void check_attention_heads(std::int64_t num_attention_heads, std::int64_t num_key_value_heads, std::int64_t head_dim,
                           const ConfigPath& path);

// `order` names every part of the vocabulary exactly once.
void check_split_vocab(const std::map<std::string, std::int64_t>& sizes, const std::vector<std::string>& order,
                       const ConfigPath& path);

}  // namespace d9d
