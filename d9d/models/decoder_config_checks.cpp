#include "d9d/models/decoder_config_checks.h"

#include <set>

#include "d9d/base/check.h"
#include "d9d/base/config/config_path.h"

namespace d9d {

void check_attention_heads(std::int64_t num_attention_heads, std::int64_t num_key_value_heads, std::int64_t head_dim,
                           const ConfigPath& path) {
  D9D_CHECK(num_attention_heads % num_key_value_heads == 0, ConfigError, path,
            "expected num_attention_heads to be divisible by num_key_value_heads = ", num_key_value_heads,
            ", got num_attention_heads = ", num_attention_heads, ". Change one of the two.");
  D9D_CHECK(head_dim % 2 == 0, ConfigError, path, "expected an even head_dim, got ", head_dim,
            ". Rotary embedding turns pairs of elements.");
}

void check_split_vocab(const std::map<std::string, std::int64_t>& sizes, const std::vector<std::string>& order,
                       const ConfigPath& path) {
  D9D_CHECK(!sizes.empty(), ConfigError, path / "split_vocab_size", "expected at least one part, got none. Add one.");
  std::set<std::string> seen;
  for (const auto& name : order) {
    D9D_CHECK(sizes.contains(name), ConfigError, path / "split_vocab_order",
              "expected names out of split_vocab_size, got '", name, "'. Add its size, or remove it.");
    D9D_CHECK(seen.insert(name).second, ConfigError, path / "split_vocab_order",
              "expected each part of split_vocab_size once, got '", name, "' twice. Remove one.");
  }
  for (const auto& [name, size] : sizes) {
    D9D_CHECK(seen.contains(name), ConfigError, path / "split_vocab_order",
              "expected each part of split_vocab_size once, got none of '", name, "'. Add it.");
  }
}

}  // namespace d9d
