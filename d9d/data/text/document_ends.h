// Checks whether documents end with a special token: without one a model does not learn to stop.
//
// Example
//   if (!end_with_special_tokens(documents, encoder)) warn_of_missing_ends(encoder, log);
#pragma once

#include "d9d/base/log.h"
#include "d9d/data/source/token_documents.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/data/text/text_rows.h"

namespace d9d {

// Returns whether the first documents all end with a special token, either appended or part of their text.
[[nodiscard]] bool end_with_special_tokens(const TokenDocuments& documents, const TextEncoder& encoder);
// Returns whether the documents of rows that are not tokenised yet will end with a special token. Tokenises the first
// rows of the first part to find out; of a row that is read in pieces, only the last piece.
[[nodiscard]] bool end_with_special_tokens(const TextRows& rows, const TextEncoder& encoder);

// Warns that no token ends a document, and suggests a usual end token if the encoder has one.
void warn_of_missing_ends(const TextEncoder& encoder, const Logger& log);

}  // namespace d9d
