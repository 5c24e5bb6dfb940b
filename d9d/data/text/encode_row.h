// Encodes a row of text as a document, and applies the policy for bad rows.
#pragma once

#include <optional>
#include <string>

#include "d9d/data/text/encoded_row.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/data/text/text_rows.h"
#include "d9d/data/text/tokenize_rows.h"

namespace d9d {

// Wraps TextEncoder::next_cut(); the encoder must outlive the result.
[[nodiscard]] NextCut next_cut_of(const TextEncoder& encoder);

// Encodes a row as a document, or a piece of a row (TextRows::read_piece) as its part of the document. For a bad row,
// sets `problem` to what is wrong and where, and returns nullopt under BadRows::kSkip. Throws IoError with that text
// under BadRows::kRefuse, and for a bad piece of a row under both policies.
[[nodiscard]] std::optional<EncodedRow> encode_row(const TextRows& rows, std::int64_t part, const TextRow& row,
                                                   const TextEncoder& encoder, const TokenizeOptions& options,
                                                   std::string& problem);

}  // namespace d9d
