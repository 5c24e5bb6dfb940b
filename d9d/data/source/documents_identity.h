// What documents of tokens are, whatever their files are called: a job that continues compares it.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "d9d/tokenizer/tokenizer_identity.h"

namespace d9d {

struct DocumentsIdentity {
  std::string tokens = {};  // a hash of them and of what is predicted, of large files of samples; empty: unknown
  TokenizerIdentity tokenizer = {};
};

// {"tokens": ..., "tokenizer": ..., "vocabulary": ...}
[[nodiscard]] nlohmann::json to_json(const DocumentsIdentity& identity);
// Throws nlohmann::json::exception.
[[nodiscard]] DocumentsIdentity documents_identity(const nlohmann::json& json);

// 16 hexadecimal digits.
[[nodiscard]] std::string hash_text(std::string_view text);

}  // namespace d9d
