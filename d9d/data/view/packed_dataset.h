// Several documents in each sequence, which do not see each other: no padding but what fits no document.
//
// Example
//   PackedDataset packed(UsableDocuments(source, {.max_positions = 2048}), {.buffer_size = 1024, .seed = 1337});
//   const TokenSample sample = packed.get(0);             // 2048 positions; sample.packed_lengths are its documents'
//
// Labels do not cross the ends of documents, and positions start from 0 in each.
#pragma once

#include "d9d/data/order/packed_order.h"
#include "d9d/data/view/dataset.h"
#include "d9d/data/view/usable_documents.h"

namespace d9d {

struct PackingOptions {
  std::int64_t buffer_size = 1024;  // documents that are packed together
  std::uint64_t seed = 0;
  bool shuffle = false;  // PackedOrder::Options; a reader need not shuffle again
};

class PackedDataset final : public Dataset<TokenSample> {
 public:
  // Throws ConfigError as PackedOrder.
  PackedDataset(UsableDocuments documents, PackingOptions options);

  [[nodiscard]] std::int64_t size() const override { return order_.size(); }
  [[nodiscard]] TokenSample get(std::int64_t index) const override { return get_in_epoch(index, 0); }
  // Sequences of the documents' max_positions. What no document fills is padding: input 0, label kIgnoreIndex, position
  // 0.
  [[nodiscard]] TokenSample get_in_epoch(std::int64_t index, std::int64_t epoch) const override;
  // Positions of its documents, without padding.
  [[nodiscard]] std::int64_t num_positions(std::int64_t index, std::int64_t epoch) const;

 private:
  UsableDocuments documents_;
  PackedOrder order_;
};

}  // namespace d9d
