// Tokenises rows of text once and writes them into a folder that TokenizedDocuments maps.
//
// Example
//   tokenize_rows(rows, encoder, {.end_of_document = encoder.id_of("<|endoftext|>"), .num_threads = 16}, folder);
//   const TokenizedDocuments documents(folder, encoder.vocabulary_size());
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "d9d/data/source/tokenized_manifest.h"
#include "d9d/data/text/bad_rows.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/data/text/text_rows.h"

namespace d9d {

struct TokenizeOptions {
  std::optional<std::int64_t> end_of_document = {};  // a token that is appended to each row
  BadRows bad_rows = BadRows::kRefuse;
  std::int64_t max_rows = -1;  // at most this many rows become documents; < 0: all
  std::int64_t num_threads = 1;
  // Called after each piece of a part, with the number of parts and the number of tokens that are done.
  std::function<void(std::int64_t num_parts, std::int64_t num_tokens)> on_progress = {};
};

// Tokenises the rows into `folder`. Documents are the rows in order, encoded by TextEncoder::encode_row(); pieces of
// long rows (TextRows::read_piece) are tokenised on several threads. The result does not depend on the number of
// threads. The folder is created atomically; it must not exist yet, but its parent must. Returns the manifest. Throws
// IoError for a bad row under BadRows::kRefuse, for a bad piece of a row, and if no row becomes a document.
TokenizedManifest tokenize_rows(const TextRows& rows, const TextEncoder& encoder, const TokenizeOptions& options,
                                const std::filesystem::path& folder);

}  // namespace d9d
