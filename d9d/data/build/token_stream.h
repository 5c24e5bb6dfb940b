// Builds the pack stream of a training job from its configuration.
//
// Example
//   auto stream = build_token_stream(config.data, {.vocabulary_size = 151936, .max_positions = 40960,
//                                                  .stream = {.rank = {1, 4}, .seed = 1337}});
#pragma once

#include <memory>
#include <optional>

#include "d9d/core/mesh/device_mesh_parameters.h"
#include "d9d/data/build/config.h"
#include "d9d/data/build/make_pack_stream.h"
#include "d9d/data/sequences/token_sample.h"

namespace d9d {

struct TokenStreamOptions {
  std::int64_t vocabulary_size = 0;                // of the model; every token id must be smaller
  std::optional<std::int64_t> max_positions = {};  // of the model: the maximum length of a sequence; unset: unlimited
  bool shows_progress = false;                     // shows a bar while tokenising; true on one rank per machine
  DeviceMeshParameters mesh = {};                  // its context- and tensor-parallel ranks share each sequence
  StreamOptions stream = {};
};

// Reads the documents of the source (build_documents), applies its view (build_view) and batches the samples. Documents
// are padded to the longest of a microbatch, and all sequences then to a multiple of mesh.position_divisor(), so that
// ranks can share them. Throws the ConfigError or IoError of build_documents() and build_view(), and ConfigError if
// sequences are longer than max_positions, or if the sources of a mixture are not all packed or all unpacked, are
// packed to different lengths, or have tokenizers in which one id has different texts. The view "streamed" of a source
// of rows is built as StreamedPacks.
[[nodiscard]] std::unique_ptr<PackStream<TokenBatch>> build_token_stream(const DataConfig& config,
                                                                         TokenStreamOptions options);

}  // namespace d9d
