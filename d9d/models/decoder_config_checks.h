// Rules for the sizes of every decoder. Each function throws ConfigError; `path` is that of the record.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "d9d/base/record.h"

namespace d9d {

// Query heads must be divided evenly among key-value heads, and head_dim must consist of rotary pairs.
void check_attention_heads(std::int64_t num_attention_heads, std::int64_t num_key_value_heads, std::int64_t head_dim,
                           const ConfigPath& path);

// `order` must name every part of the vocabulary exactly once.
void check_split_vocab(const std::map<std::string, std::int64_t>& sizes, const std::vector<std::string>& order,
                       const ConfigPath& path);

}  // namespace d9d
