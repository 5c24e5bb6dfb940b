// The packs of a pretraining job, from its configuration.
//
// Example
//   auto stream = build_token_stream(config.data, {.vocabulary_size = 151936, .stream = {.rank = {1, 4}, .seed =
//   1337}});
#pragma once

#include <memory>

#include "d9d/data/config.h"
#include "d9d/data/make_pack_stream.h"
#include "d9d/data/token_sample.h"

namespace d9d {

struct TokenStreamOptions {
  std::int64_t vocabulary_size = 0;  // of the model: every token id must be below
  StreamOptions stream = {};
};

// kind text: text_dataset; kind tokens: token_file_dataset; both in sequences of one length. Throws ConfigError or
// IoError as those do, and when the vocabulary has no room for bytes, or for a Hugging Face dataset, which is not
// supported.
[[nodiscard]] std::unique_ptr<PackStream<TokenBatch>> build_token_stream(const DataConfig& config,
                                                                         TokenStreamOptions options);

}  // namespace d9d
