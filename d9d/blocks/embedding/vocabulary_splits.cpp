#include "d9d/blocks/embedding/vocabulary_splits.h"

#include <algorithm>

#include "d9d/base/check.h"

namespace d9d {

std::int64_t VocabularySplits::total() const {
  std::int64_t sum = 0;
  for (const std::string& name : order) sum += sizes.at(name);
  return sum;
}

void VocabularySplits::validate() const {
  D9D_CHECK(!order.empty(), ConfigError,
            "[blocks::vocabulary] expected at least one split in split_vocab_order, got none.");
  for (const std::string& name : order) {
    const auto found = sizes.find(name);
    D9D_CHECK(found != sizes.end(), ConfigError, "[blocks::vocabulary] expected a size for split '", name,
              "' of split_vocab_order, got none. Add it to split_vocab_size.");
    D9D_CHECK(found->second > 0, ConfigError, "[blocks::vocabulary] expected a positive size for split '", name,
              "', got ", found->second, ".");
    D9D_CHECK(std::ranges::count(order, name) == 1, ConfigError, "[blocks::vocabulary] expected split '", name,
              "' once in split_vocab_order, got it more often.");
  }
  for (const auto& [name, size] : sizes) {
    D9D_CHECK(std::ranges::count(order, name) == 1, ConfigError, "[blocks::vocabulary] expected split '", name,
              "' of split_vocab_size in split_vocab_order, got none: its table would never be used.");
  }
}

}  // namespace d9d
