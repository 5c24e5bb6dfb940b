#include "d9d/data/source/documents_identity.h"

#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "d9d/base/fnv1a.h"

namespace d9d {

nlohmann::json to_json(const DocumentsIdentity& identity) {
  return {{"tokens", identity.tokens},
          {"tokenizer", identity.tokenizer.all},
          {"vocabulary", identity.tokenizer.vocabulary}};
}

DocumentsIdentity documents_identity(const nlohmann::json& json) {
  return {.tokens = json.at("tokens").get<std::string>(),
          .tokenizer = {.vocabulary = json.at("vocabulary").get<std::string>(),
                        .all = json.at("tokenizer").get<std::string>()}};
}

std::string hash_text(std::string_view text) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(fnv1a(text)));
  return digits.data();
}

}  // namespace d9d
