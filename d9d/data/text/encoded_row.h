// A row of text as a document of tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "d9d/data/source/token_documents.h"

namespace d9d {

struct EncodedRow {
  std::vector<std::int64_t> tokens = {};
  std::optional<std::vector<TokenRange>> targets = {};  // TokenDocuments::targets(); unset: all tokens
  std::string problem = {};                             // what is wrong with the row's text; it then has no tokens
};

}  // namespace d9d
