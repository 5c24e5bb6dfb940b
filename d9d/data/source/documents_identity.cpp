#include "d9d/data/source/documents_identity.h"

#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
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

std::string difference_of_data(const nlohmann::json& saved, const nlohmann::json& own) {
  if (saved.is_null() || own.is_null()) return {};
  if (saved.size() != own.size()) return cat(" of ", saved.size(), " sources, got ", own.size());
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const DocumentsIdentity before = documents_identity(saved[i]), now = documents_identity(own[i]);
    const bool has_same_ids = before.tokenizer.vocabulary == now.tokenizer.vocabulary;
    if (before.tokens == now.tokens && has_same_ids) continue;
    const char* what = before.tokenizer == now.tokenizer ? "other documents" : "tokens of another tokenizer";
    return cat(", got ", what, saved.size() == 1 ? "" : cat(" in source ", i));
  }
  return {};
}

std::string hash_text(std::string_view text) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(fnv1a(text)));
  return digits.data();
}

}  // namespace d9d
