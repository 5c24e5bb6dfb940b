// Builds the pack stream of a training job from its configuration.
//
// Example
//   auto stream = build_token_stream(config.data, {.vocabulary_size = 151936, .max_positions = 40960,
//                                                  .stream = {.rank = {1, 4}, .seed = 1337}});
#pragma once

#include <memory>
#include <optional>

#include "d9d/core/mesh/device_mesh_parameters.h"
#include "d9d/data/config.h"
#include "d9d/data/make_pack_stream.h"
#include "d9d/data/view/token_sample.h"

namespace d9d {

struct TokenStreamOptions {
  std::int64_t vocabulary_size = 0;                // of the model; every token id must be smaller
  std::optional<std::int64_t> max_positions = {};  // of the model: the maximum length of a sequence; none: unlimited
  bool shows_progress = false;                     // of tokenising, which one rank of a machine does
  DeviceMeshParameters mesh = {};                  // whose context- and tensor-parallel ranks share each sequence
  StreamOptions stream = {};
};

// The documents of the source (build_documents) in its view (build_view), in batches. Documents are padded to the
// longest of a microbatch, and these and concatenated sequences to a multiple of the ranks that share a sequence;
// packed ones have one length. Throws ConfigError or IoError as these do, and ConfigError if sequences are longer than
// the model's positions, if packed ones cannot be shared by these ranks, or if a mixture has packed sources and others,
// or sources of two tokenizers. The view "streamed" of a source of rows is StreamedPacks.
[[nodiscard]] std::unique_ptr<PackStream<TokenBatch>> build_token_stream(const DataConfig& config,
                                                                         TokenStreamOptions options);

}  // namespace d9d
