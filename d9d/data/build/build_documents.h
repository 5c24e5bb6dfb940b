// Builds the documents of a data source from its configuration.
//
// Example
//   const auto documents = build_documents(source, {.vocabulary_size = 151936});
#pragma once

#include <memory>
#include <optional>

#include "d9d/base/log.h"
#include "d9d/data/build/config.h"
#include "d9d/data/source/token_documents.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/data/text/text_rows.h"
#include "d9d/data/text/tokenize_rows.h"

namespace d9d {

struct DocumentOptions {
  std::int64_t vocabulary_size = 0;  // of the model; every token id must be smaller
  bool shows_progress = false;       // shows a bar on stderr while tokenising
  Logger log = Logger();             // messages about tokenising, which one rank does for all
  Logger shared_log = Logger();      // messages that are the same on all ranks
};

// Opens the documents of a source; rows of text are tokenised unless the cache has them already (cached_documents). A
// source of kind "text" that has neither a tokenizer nor an end_of_document is not tokenised: its bytes are the tokens.
// Throws the ConfigError or IoError of the source's reader, and ConfigError if the vocabulary is too small for the
// tokenizer or for bytes, or if the tokenizer has no token with the text end_of_document.
[[nodiscard]] std::shared_ptr<const TokenDocuments> build_documents(const SourceConfig& config,
                                                                    const DocumentOptions& options);
// Tokenises the first use_samples rows of the dataset, and shuffles the documents with shuffle_seed, as the example of
// d9d 0.16 (the reference) does.
[[nodiscard]] std::shared_ptr<const TokenDocuments> build_documents(const DatasetDataConfig& config,
                                                                    const DocumentOptions& options);

// What StreamedPacks needs to tokenise a source while the job runs.
struct TokenisableRows {
  std::shared_ptr<const TextRows> rows;
  std::shared_ptr<const TextEncoder> encoder;
  TokenizeOptions options = {};
};
// Opens the rows of a source. Warns in `log` of settings that are probably unintended. Throws ConfigError for sources
// of token ids.
[[nodiscard]] TokenisableRows build_rows(const SourceConfig& config, std::int64_t vocabulary_size,
                                         const Logger& log = Logger());

// Returns the token that the concatenated view puts between two documents of a source. Only text that is read as bytes
// needs one, because no token ends its documents; nullopt for other sources.
[[nodiscard]] std::optional<std::int64_t> document_separator(const SourceConfig& config);

}  // namespace d9d
