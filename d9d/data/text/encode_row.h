// A row of text as a document, or what happens to a bad one.
#pragma once

#include <optional>
#include <string>

#include "d9d/data/text/encoded_row.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/data/text/text_rows.h"
#include "d9d/data/text/tokenize_rows.h"

namespace d9d {

// Borrows the encoder.
[[nodiscard]] NextCut next_cut_of(const TextEncoder& encoder);

// Of a piece of a row (TextRows::read_piece) its part of the document. nullopt for a bad row that is skipped: `problem`
// then has its place and what is wrong. Throws IoError with these if it is refused, as a piece always is.
[[nodiscard]] std::optional<EncodedRow> encode_row(const TextRows& rows, std::int64_t part, const TextRow& row,
                                                   const TextEncoder& encoder, const TokenizeOptions& options,
                                                   std::string& problem);

}  // namespace d9d
