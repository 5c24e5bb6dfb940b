// Shows which tokens of a document are learned.
//
// Example
//   std::cout << d9d::marked_text(row.tokens, *row.targets, encoder);       // "<user>Hi<assistant>⟦Hello!</s>⟧"
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "d9d/data/source/token_documents.h"
#include "d9d/data/text/text_encoder.h"

namespace d9d {

// The text of the tokens, with ⟦ and ⟧ around each range of targets.
[[nodiscard]] std::string marked_text(std::span<const std::int64_t> tokens, std::span<const TokenRange> targets,
                                      const TextEncoder& encoder);

// The same of the beginning of a document, of at most max_tokens, on one line.
[[nodiscard]] std::string marked_line(const TokenDocuments& documents, std::int64_t document, std::int64_t max_tokens,
                                      const TextEncoder& encoder);

}  // namespace d9d
