// Builds the pack stream of a pretraining job from its configuration.
//
// Example
//   auto stream = build_token_stream(config.data, {.vocabulary_size = 151936, .max_positions = 40960,
//                                                  .stream = {.rank = {1, 4}, .seed = 1337}});
#pragma once

#include <memory>
#include <optional>

#include "d9d/data/config.h"
#include "d9d/data/make_pack_stream.h"
#include "d9d/data/view/token_sample.h"

namespace d9d {

struct TokenStreamOptions {
  std::int64_t vocabulary_size = 0;                // of the model; every token id must be smaller
  std::optional<std::int64_t> max_positions = {};  // of the model: the maximum length of a sequence; none: unlimited
  StreamOptions stream = {};
};

// kind text: text_dataset; kind tokens: token_file_dataset; both with sequences of one length. Throws ConfigError or
// IoError as these do, and ConfigError if the vocabulary is too small for bytes, if sequences are longer than the
// model's positions, and for a Hugging Face dataset, which is not supported.
[[nodiscard]] std::unique_ptr<PackStream<TokenBatch>> build_token_stream(const DataConfig& config,
                                                                         TokenStreamOptions options);

}  // namespace d9d
