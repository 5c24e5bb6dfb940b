// One part of the rows of a source, tokenised in memory and packed into sequences in random order.
//
// Example
//   const auto part = make_streamed_part(rows, encoder, 17, {.max_positions = 2048, .seed = 1337});
//   for (std::int64_t i = 0; i < part.size(); ++i) part.sequence(i);
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "d9d/data/sequences/packed_dataset.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/data/text/text_rows.h"
#include "d9d/data/text/tokenize_rows.h"

namespace d9d {

struct StreamedPartOptions {
  TokenizeOptions tokenize = {};  // only end_of_document and bad_rows are used
  std::int64_t max_positions = 1;
  LongDocuments long_documents = LongDocuments::kRefuse;
  std::int64_t buffer_size = 1024;  // number of documents that are packed at a time
  std::uint64_t seed = 0;
  bool shuffle = true;
};

class StreamedPart {
 public:
  // `packed`: null if the part has no document.
  StreamedPart(std::shared_ptr<const PackedDataset> packed, std::int64_t num_skipped, bool predicts_nothing = false)
      : packed_(std::move(packed)), num_skipped_(num_skipped), predicts_nothing_(predicts_nothing) {}

  [[nodiscard]] std::int64_t size() const { return packed_ ? packed_->size() : 0; }
  [[nodiscard]] TokenSample sequence(std::int64_t index) const { return packed_->get(index); }
  [[nodiscard]] std::int64_t num_positions(std::int64_t index) const { return packed_->num_positions(index, 0); }
  [[nodiscard]] std::int64_t num_skipped() const { return num_skipped_; }    // number of skipped bad rows
  [[nodiscard]] bool predicts_nothing() const { return predicts_nothing_; }  // no item has a target

 private:
  std::shared_ptr<const PackedDataset> packed_;
  std::int64_t num_skipped_;
  bool predicts_nothing_;
};

// Tokenises and packs one part of the rows. Throws IoError that names file and row as tokenize_rows() does, and the
// IoError of FilteredDocuments for documents that are too long.
[[nodiscard]] StreamedPart make_streamed_part(const TextRows& rows, const TextEncoder& encoder, std::int64_t part,
                                              const StreamedPartOptions& options);

}  // namespace d9d
