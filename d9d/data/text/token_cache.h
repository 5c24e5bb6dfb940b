// Rows of text as documents: tokenised at first use, mapped afterwards.
//
// Example
//   const auto documents = cached_documents(rows, encoder, {.folder = "cache", .tokenize = {.num_threads = 16}});
//
// What was tokenised before is found by a key: a hash of the files (paths, sizes, times), columns, tokenizer and
// options. It is a folder of that name within the cache's. A process that is killed leaves a folder with `.tmp-` in its
// name, which may be deleted and is never read.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "d9d/base/log.h"
#include "d9d/data/source/tokenized_documents.h"
#include "d9d/data/text/tokenize_rows.h"

namespace d9d {

struct TokenCacheOptions {
  std::filesystem::path folder = {};  // made if it is not there
  TokenizeOptions tokenize = {};
  std::int64_t vocabulary_size = 0;  // of the model: TokenizedDocuments
  bool shows_progress = true;        // a bar on stderr
  Logger log = Logger();
};

// 32 hexadecimal digits.
[[nodiscard]] std::string token_cache_key(const TextRows& rows, const TextEncoder& encoder,
                                          const TokenizeOptions& options);

// The documents name files and rows in messages. Throws as tokenize_rows() and TokenizedDocuments. Of several processes
// that begin at once each tokenises, and all map the folder that was first: let one of a machine begin before the
// others (DistContext::local_main_process_first).
[[nodiscard]] std::shared_ptr<const TokenizedDocuments> cached_documents(std::shared_ptr<const TextRows> rows,
                                                                         std::shared_ptr<const TextEncoder> encoder,
                                                                         const TokenCacheOptions& options);

// Where a cache lies unless one is named: $XDG_CACHE_HOME/d9d/tokens, or $HOME/.cache/d9d/tokens. Throws ConfigError if
// neither variable is set.
[[nodiscard]] std::filesystem::path default_token_cache();

}  // namespace d9d
