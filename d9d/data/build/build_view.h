// Turns documents into the samples that a configuration asks for.
//
// Example
//   const TokenView view = build_view(documents, source.sequence, {.seed = 1337, .global_batch_size = 64});
//   view.dataset->get_in_epoch(0, 0);
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/base/log.h"
#include "d9d/data/build/view_config.h"
#include "d9d/data/sequences/dataset.h"
#include "d9d/data/sequences/token_sample.h"
#include "d9d/data/source/token_documents.h"

namespace d9d {

struct TokenView {
  std::shared_ptr<const Dataset<TokenSample>> dataset;
  // Names the view's internal order (GlobalBatchSampler::Options::dataset_order). A job that resumes compares this text
  // with the saved one, so a new version must not change its words.
  std::string order = {};
  bool shuffles_itself = false;                 // the view determines the order of samples: the reader must not shuffle
  bool is_packed = false;                       // samples have packed_lengths
  std::vector<DocumentsIdentity> sources = {};  // identity of the documents of each source
};

struct ViewOptions {
  std::uint64_t seed = 0;
  bool shuffle = false;
  std::int64_t global_batch_size = 1;
  std::optional<std::int64_t> separator = {};  // the token between two documents (ConcatenatedTokens)
  Logger log = Logger();                       // reports documents that are left out or truncated
};

// Applies the view that the configuration selects. Throws the ConfigError or IoError of the view's class, and
// ConfigError for the view "streamed", if no document fits the view, or if no sample has a token to predict.
[[nodiscard]] TokenView build_view(std::shared_ptr<const TokenDocuments> documents, const SequenceConfig& config,
                                   const ViewOptions& options);

// The view that the example of d9d 0.16 (the reference) uses: each sample is one document, documents are sorted in
// buffers, and the first epoch has the order of the reference.
struct ReferenceViewOptions {
  std::int64_t max_positions = 1;
  std::int64_t presort_buffer_size = 1;
  std::int64_t global_batch_size = 1;
  std::uint64_t seed = 0;
  bool shuffle = false;  // shuffles the epochs after the first
};
[[nodiscard]] TokenView build_reference_view(std::shared_ptr<const TokenDocuments> documents,
                                             const ReferenceViewOptions& options);

}  // namespace d9d
