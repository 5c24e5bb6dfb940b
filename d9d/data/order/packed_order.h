// Chooses the documents that share a sequence: packs that fill it as far as possible. Packs are computed one buffer at
// a time.
//
// Example
//   PackedOrder order({.size = documents.size(), .length = lengths, .capacity = 2048, .buffer_size = 1024, .seed = 1});
//   for (const std::int64_t document : order(/*pack=*/17, /*epoch=*/0)) append(document);
//
// A buffer has buffer_size documents, which are neighbours in the source or, with `shuffle`, in a permutation that
// depends on the seed. They are packed by best-fit decreasing: the longest first, each into the fullest pack that has
// room. With `shuffle`, each epoch shuffles the buffers, the packs within their buffer, and documents of equal length
// anew; the number of packs is the same in all epochs. Source: D. S. Johnson et al., "Worst-case performance bounds for
// simple one-dimensional packing algorithms", 1974.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "d9d/data/order/recent_buffers.h"

namespace d9d {

class PackedOrder {
 public:
  struct Options {
    std::int64_t size = 0;                             // number of documents
    std::function<std::int64_t(std::int64_t)> length;  // length of a document, in 1..capacity; called concurrently
    std::int64_t capacity = 1;
    std::int64_t buffer_size = 1;
    std::uint64_t seed = 0;
    bool shuffle = false;
  };

  // Calls `length` once for each document. Throws ConfigError unless size, capacity and buffer_size are positive.
  explicit PackedOrder(Options options);

  [[nodiscard]] std::int64_t size() const { return size_; }  // number of packs, in every epoch
  // The documents of a pack, in the order of the buffer; expects 0 <= pack < size(). Thread-safe. Without `shuffle` the
  // packs of a buffer are in the order of their first documents. Packs a buffer unless it is one of the few that were
  // used last.
  [[nodiscard]] std::vector<std::int64_t> operator()(std::int64_t pack, std::int64_t epoch) const;

 private:
  using Packs = std::vector<std::vector<std::int64_t>>;
  struct Place {  // position of a buffer in an epoch
    std::int64_t first_pack;
    std::int64_t buffer;
  };
  [[nodiscard]] Packs packs_of(std::int64_t epoch, std::int64_t buffer) const;
  [[nodiscard]] std::vector<Place> places_of(std::int64_t epoch) const;

  Options options_;
  std::vector<std::int64_t> num_packs_;  // of each buffer
  std::int64_t size_ = 0;
  mutable RecentBuffers<std::vector<Place>> recent_places_;
  mutable RecentBuffers<Packs> recent_;
};

}  // namespace d9d
