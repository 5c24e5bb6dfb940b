// Tokenises rows of text, once, into a folder that TokenizedDocuments maps.
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
  std::optional<std::int64_t> end_of_document = {};  // a token after each row's last
  BadRows bad_rows = BadRows::kRefuse;
  std::int64_t max_rows = -1;  // rows after these are not read; < 0: all
  std::int64_t num_threads = 1;
  // Told after each part and each piece of one: parts done of all, and tokens so far.
  std::function<void(std::int64_t num_parts, std::int64_t num_tokens)> on_progress = {};
};

// Documents are the rows in order, as TextEncoder::encode_row has them; pieces of long rows (TextRows::read_piece) are
// tokenised on several threads. The folder appears whole; it must not exist, its parent must. The same for any number
// of threads. Returns what the manifest says. Throws IoError as the options say, and if no row is a document.
TokenizedManifest tokenize_rows(const TextRows& rows, const TextEncoder& encoder, const TokenizeOptions& options,
                                const std::filesystem::path& folder);

}  // namespace d9d
