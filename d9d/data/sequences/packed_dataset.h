// Packs several documents into each sequence; they do not attend to each other. Only the room that no document fits
// into is padding.
//
// Example
//   PackedDataset packed(FilteredDocuments(source, {.max_positions = 2048}), {.buffer_size = 1024, .seed = 1337});
//   const TokenSample sample = packed.get(0);             // 2048 positions; sample.packed_lengths: of each document
//
// Labels do not cross the ends of documents, and positions start from 0 in each.
#pragma once

#include "d9d/data/order/bin_packed_order.h"
#include "d9d/data/sequences/dataset.h"
#include "d9d/data/sequences/filtered_documents.h"

namespace d9d {

struct PackingOptions {
  std::int64_t buffer_size = 1024;  // number of documents that are packed at a time
  std::uint64_t seed = 0;
  bool shuffle = false;  // BinPackedOrder::Options::shuffle; the reader need not shuffle again
};

class PackedDataset final : public Dataset<TokenSample> {
 public:
  // Throws the ConfigError of BinPackedOrder.
  PackedDataset(FilteredDocuments documents, PackingOptions options);

  [[nodiscard]] std::int64_t size() const override { return order_.size(); }
  [[nodiscard]] TokenSample get(std::int64_t index) const override { return get_in_epoch(index, 0); }
  // Returns a sequence of DocumentRules::max_positions positions. Positions after the last document are padding: input
  // 0, label kIgnoreIndex, position 0.
  [[nodiscard]] TokenSample get_in_epoch(std::int64_t index, std::int64_t epoch) const override;
  [[nodiscard]] DataDescription describe() const override;
  // Returns the number of positions of a sample that are not padding.
  [[nodiscard]] std::int64_t num_positions(std::int64_t index, std::int64_t epoch) const;

 private:
  FilteredDocuments documents_;
  BinPackedOrder order_;
};

}  // namespace d9d
