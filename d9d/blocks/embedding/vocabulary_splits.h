// A vocabulary made of named, consecutive ranges of token ids.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace d9d {

struct VocabularySplits {
  std::map<std::string, std::int64_t> sizes;
  std::vector<std::string> order;  // names every split once

  [[nodiscard]] std::int64_t total() const;
  // Throws ConfigError that names the split unless order and sizes agree and each size is positive.
  void validate() const;
};

}  // namespace d9d
