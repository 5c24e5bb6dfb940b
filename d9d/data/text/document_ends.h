// Whether documents end with a token that says so: without one a model does not learn to stop.
//
// Example
//   if (!end_with_special_tokens(documents, encoder)) warn_of_missing_ends(encoder, log);
#pragma once

#include "d9d/base/log.h"
#include "d9d/data/source/token_documents.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/data/text/text_rows.h"

namespace d9d {

// Of the first documents, as their texts may have ends of their own.
[[nodiscard]] bool end_with_special_tokens(const TokenDocuments& documents, const TextEncoder& encoder);
// The same of rows that are not tokenised yet: reads their first part, and tokenises the first rows of it, of one in
// pieces the last piece.
[[nodiscard]] bool end_with_special_tokens(const TextRows& rows, const TextEncoder& encoder);

// Names a token of the encoder that may be meant as the end, if it has one.
void warn_of_missing_ends(const TextEncoder& encoder, const Logger& log);

}  // namespace d9d
