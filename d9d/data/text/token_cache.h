// Caches tokenised rows of text: tokenises them at first use, and memory-maps the result afterwards.
//
// Example
//   const auto documents = cached_documents(rows, encoder, {.folder = "cache", .tokenize = {.num_threads = 16}});
//
// Earlier results are found by a key: a hash of the files (paths, sizes, times, sampled contents), columns, tokenizer
// and options. The key names a folder within the cache folder. A killed process leaves a folder with `.tmp-` in its
// name, which is never read and may be deleted.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "d9d/base/log.h"
#include "d9d/data/source/tokenized_documents.h"
#include "d9d/data/text/tokenize_rows.h"

namespace d9d {

struct TokenCacheOptions {
  std::filesystem::path folder = {};  // created if it does not exist
  TokenizeOptions tokenize = {};
  std::int64_t vocabulary_size = 0;  // of the model; ids that are not below it are errors
  bool shows_progress = true;        // shows a bar on stderr
  Logger log = Logger();
};

// Returns the key of the rows in the cache: 32 hexadecimal digits.
[[nodiscard]] std::string token_cache_key(const TextRows& rows, const TextEncoder& encoder,
                                          const TokenizeOptions& options);

// Returns the tokenised rows from the cache, after tokenising them if necessary. The documents name files and rows in
// messages. Throws the errors of tokenize_rows() and TokenizedDocuments. If several processes begin at the same time,
// each tokenises, and all map the folder that was complete first. To avoid the repeated work, let one process of each
// machine begin before the others (DistContext::local_main_process_first).
[[nodiscard]] std::shared_ptr<const TokenizedDocuments> cached_documents(std::shared_ptr<const TextRows> rows,
                                                                         std::shared_ptr<const TextEncoder> encoder,
                                                                         const TokenCacheOptions& options);

// The default cache folder: $XDG_CACHE_HOME/d9d/tokens, or $HOME/.cache/d9d/tokens. Throws ConfigError if neither
// variable is set.
[[nodiscard]] std::filesystem::path default_token_cache();

}  // namespace d9d
