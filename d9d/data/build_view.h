// Documents as the samples that a configuration asks for.
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
#include "d9d/data/source/token_documents.h"
#include "d9d/data/view/dataset.h"
#include "d9d/data/view/token_sample.h"
#include "d9d/data/view_config.h"

namespace d9d {

struct TokenView {
  std::shared_ptr<const Dataset<TokenSample>> dataset;
  std::string order = {};  // names an order that the view has by itself (GlobalBatchSampler::Options::dataset_order)
  bool shuffles_itself = false;                 // the reader must not
  bool is_packed = false;                       // samples have packed_lengths
  std::vector<DocumentsIdentity> sources = {};  // of the documents, by source of a mixture
};

struct ViewOptions {
  std::uint64_t seed = 0;
  bool shuffle = false;
  std::int64_t global_batch_size = 1;
  std::optional<std::int64_t> separator = {};  // TokenRow
  Logger log = Logger();                       // is told of documents that are left out or cut
};

// Throws ConfigError or IoError as the view's class, and ConfigError for the view "streamed" and for sources without a
// document of two tokens.
[[nodiscard]] TokenView build_view(std::shared_ptr<const TokenDocuments> documents, const SequenceConfig& config,
                                   const ViewOptions& options);

// The view of 0.16's example: one document a sample, sorted in buffers, in the reference's order in the first epoch.
struct ReferenceViewOptions {
  std::int64_t max_positions = 1;
  std::int64_t presort_buffer_size = 1;
  std::int64_t global_batch_size = 1;
  std::uint64_t seed = 0;
  bool shuffle = false;  // later epochs
};
[[nodiscard]] TokenView build_reference_view(std::shared_ptr<const TokenDocuments> documents,
                                             const ReferenceViewOptions& options);

}  // namespace d9d
