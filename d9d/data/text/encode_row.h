// A row of text as a document.
#pragma once

#include <optional>
#include <vector>

#include "d9d/data/text/text_encoder.h"
#include "d9d/data/text/text_rows.h"
#include "d9d/data/text/tokenize_rows.h"

namespace d9d {

struct EncodedRow {
  std::vector<std::int64_t> tokens = {};
  std::int64_t prompt_length = 0;  // tokens at the begin that are the first of two columns
};

// nullopt for a bad row that is skipped: `problem` then has its place and what is wrong. Throws IoError with these if
// it is refused.
[[nodiscard]] std::optional<EncodedRow> encode_row(const TextRows& rows, std::int64_t part, const TextRow& row,
                                                   const TextEncoder& encoder, const TokenizeOptions& options,
                                                   std::string& problem);

}  // namespace d9d
