// Packs documents into sequences: each bin is the list of documents that share one sequence and fill it as far as
// possible. Bins are computed one buffer at a time.
//
// Example
//   BinPackedOrder order({.size = documents.size(), .length = lengths, .capacity = 2048, .buffer_size = 1024,
//                        .seed = 1});
//   for (const std::int64_t document : order(/*bin=*/17, /*epoch=*/0)) append(document);
//
// A buffer has buffer_size documents, which are neighbours in the source or, with `shuffle`, in a permutation that
// depends on the seed. They are packed by best-fit decreasing: the longest first, each into the fullest bin that has
// room. With `shuffle`, each epoch shuffles the buffers, the bins within their buffer, and documents of equal length
// anew; the number of bins is the same in all epochs. Source: D. S. Johnson et al., "Worst-case performance bounds for
// simple one-dimensional packing algorithms", 1974.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "d9d/data/order/recent_buffers.h"

namespace d9d {

class BinPackedOrder {
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
  explicit BinPackedOrder(Options options);

  [[nodiscard]] const Options& options() const { return options_; }

  [[nodiscard]] std::int64_t size() const { return size_; }  // number of bins, in every epoch
  // Returns the documents of a bin, in the order of the buffer; expects 0 <= bin < size(). Thread-safe. Without
  // `shuffle` the bins of a buffer are in the order of their first documents. Packs the buffer of the bin, unless it is
  // one of the few buffers that were used last, which are cached.
  [[nodiscard]] std::vector<std::int64_t> operator()(std::int64_t bin, std::int64_t epoch) const;

 private:
  using Bins = std::vector<std::vector<std::int64_t>>;
  struct Place {  // a buffer, and the index of its first bin in an epoch
    std::int64_t first_bin;
    std::int64_t buffer;
  };
  [[nodiscard]] Bins bins_of(std::int64_t epoch, std::int64_t buffer) const;
  [[nodiscard]] std::vector<Place> places_of(std::int64_t epoch) const;

  Options options_;
  std::vector<std::int64_t> num_bins_;  // of each buffer
  std::int64_t size_ = 0;
  mutable RecentBuffers<std::vector<Place>> recent_places_;
  mutable RecentBuffers<Bins> recent_;
};

}  // namespace d9d
