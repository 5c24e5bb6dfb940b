// A random order in which neighbours have similar sort keys (lengths), so that batches need little padding. It is
// computed one buffer at a time.
//
// Example
//   BufferSortedOrder order({.size = dataset.size(), .sort_key = lengths, .buffer_size = 1024, .batch_size = 64,
//                            .seed = 1337, .shuffle = true});
//   const std::int64_t sample = order(/*index=*/17, /*epoch=*/0);
//
// Buffer b consists of the items at [b * buffer_size, (b + 1) * buffer_size) of the dataset or, with `shuffle`, of a
// permutation that depends on (seed, epoch). They are sorted by key, with ties in random order, and split into batches
// of batch_size. Then the batches are shuffled, and the items within each batch. Items that do not fill a batch stay at
// the end of their buffer, so batches are global batches if batch_size is the global batch size. All random choices are
// functions of (seed, epoch, buffer).
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "d9d/base/enum_names.h"
#include "d9d/data/order/python_random.h"
#include "d9d/data/order/recent_buffers.h"

namespace d9d {

enum class BufferOrder {
  kKeyed,   // random choices depend on (seed, epoch, buffer)
  kLegacy,  // epoch 0 has the order of d9d 0.24 with init_seed = seed; later epochs are keyed
};
constexpr auto enum_names(BufferOrder) {
  return std::to_array<EnumName<BufferOrder>>({{BufferOrder::kKeyed, "keyed"}, {BufferOrder::kLegacy, "legacy"}});
}

class BufferSortedOrder {
 public:
  struct Options {
    std::int64_t size = 0;
    std::function<std::int64_t(std::int64_t)> sort_key;  // sort key of an item; called concurrently
    std::int64_t buffer_size = 1;
    std::int64_t batch_size = 1;
    std::uint64_t seed = 0;
    bool shuffle = false;  // each epoch assigns items to buffers anew; no effect in the legacy epoch 0
    BufferOrder order = BufferOrder::kKeyed;
  };

  // Throws ConfigError unless size, buffer_size and batch_size are positive and, in keyed order, buffer_size is a
  // multiple of batch_size.
  explicit BufferSortedOrder(Options options);

  [[nodiscard]] const Options& options() const { return options_; }

  // Returns the item at `index` in `epoch`; expects 0 <= index < size. Thread-safe. Sorts the buffer of the item,
  // unless it is one of the few buffers that were used last, which are cached.
  [[nodiscard]] std::int64_t operator()(std::int64_t index, std::int64_t epoch) const;

 private:
  using Items = std::vector<std::int64_t>;
  [[nodiscard]] Items range_of(std::int64_t buffer) const;
  [[nodiscard]] Items keyed(std::int64_t epoch, std::int64_t buffer) const;
  [[nodiscard]] Items legacy(std::int64_t buffer) const;

  Options options_;
  mutable RecentBuffers<Items> recent_;
  mutable std::mutex legacy_mutex_;                         // guards both members below
  mutable std::optional<PythonRandom> legacy_random_ = {};  // the generator at the start of buffer legacy_next_
  mutable std::int64_t legacy_next_ = 0;
};

}  // namespace d9d
