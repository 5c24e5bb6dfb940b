// The documents of a source of a configuration.
//
// Example
//   const auto documents = build_documents(source, {.vocabulary_size = 151936});
#pragma once

#include <memory>
#include <optional>

#include "d9d/base/log.h"
#include "d9d/data/config.h"
#include "d9d/data/source/token_documents.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/data/text/text_rows.h"
#include "d9d/data/text/tokenize_rows.h"

namespace d9d {

struct DocumentOptions {
  std::int64_t vocabulary_size = 0;  // of the model; every token id must be smaller
  bool shows_progress = false;       // of tokenising, a bar on stderr
  Logger log = Logger();             // for what one rank does for all: tokenising
  Logger shared_log = Logger();      // for what all ranks find alike
};

// Rows of text are tokenised where the cache does not have them (cached_documents); text without a tokenizer and
// without ends of documents is read as bytes as it is. Throws ConfigError or IoError of the source's form, and
// ConfigError if the vocabulary is too small for the tokenizer or for bytes, or if the tokenizer has no such token.
[[nodiscard]] std::shared_ptr<const TokenDocuments> build_documents(const SourceConfig& config,
                                                                    const DocumentOptions& options);
// The first use_samples rows in the order of 0.16's example.
[[nodiscard]] std::shared_ptr<const TokenDocuments> build_documents(const DatasetDataConfig& config,
                                                                    const DocumentOptions& options);

// The rows of a source with what tokenises them, for a stream of them. `log` is told of what may not be meant. Throws
// ConfigError for sources of tokens.
struct TokenisableRows {
  std::shared_ptr<const TextRows> rows;
  std::shared_ptr<const TextEncoder> encoder;
  TokenizeOptions options = {};
};
[[nodiscard]] TokenisableRows build_rows(const SourceConfig& config, std::int64_t vocabulary_size,
                                         const Logger& log = Logger());

// A token between two documents of a source in the concatenated view: of text as bytes, whose files have no ends.
[[nodiscard]] std::optional<std::int64_t> document_separator(const SourceConfig& config);

}  // namespace d9d
