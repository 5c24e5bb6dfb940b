// A dataset in which each sample is one document, or a part of a long one, so sequences have different lengths.
//
// Example
//   const auto dataset = std::make_shared<DocumentDataset>(FilteredDocuments(source, {.max_positions = 2048}));
//   const TokenBatch batch = collate_padded(std::vector{dataset->get(0), dataset->get(1)});
#pragma once

#include <utility>

#include "d9d/data/sequences/dataset.h"
#include "d9d/data/sequences/filtered_documents.h"

namespace d9d {

class DocumentDataset final : public Dataset<TokenSample> {
 public:
  explicit DocumentDataset(FilteredDocuments documents) : documents_(std::move(documents)) {}

  [[nodiscard]] std::int64_t size() const override { return documents_.size(); }
  [[nodiscard]] TokenSample get(std::int64_t index) const override { return documents_.sample(index); }
  // Number of positions, for BufferSortedDataset.
  [[nodiscard]] std::int64_t sort_key(std::int64_t index) const { return documents_.num_positions(index); }
  [[nodiscard]] DataDescription describe() const override {
    return {.line = counted(size(), "sequence") + ", each one document", .inputs = {documents_.describe()}};
  }

 private:
  FilteredDocuments documents_;
};

}  // namespace d9d
