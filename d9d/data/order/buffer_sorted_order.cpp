#include "d9d/data/order/buffer_sorted_order.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/data/order/permutation.h"

namespace d9d {

namespace {

constexpr std::uint64_t kLegacySeedMask = 0x105E7;  // the reference, d9d 0.24, XORs its seed with this

std::vector<std::int64_t> permuted(const std::vector<std::int64_t>& items, std::uint64_t seed, std::int64_t stream) {
  std::vector<std::int64_t> result;
  if (items.empty()) return result;
  const Permutation order(std::ssize(items), {.seed = seed, .epoch = stream});
  for (std::int64_t i = 0; i < std::ssize(items); ++i) result.push_back(items[order(i)]);
  return result;
}

}  // namespace

BufferSortedOrder::BufferSortedOrder(Options options) : options_(std::move(options)) {
  D9D_CHECK(options_.size >= 1 && options_.buffer_size >= 1 && options_.batch_size >= 1, ConfigError,
            "[data::BufferSortedOrder] expected size, buffer_size and batch_size >= 1, got ", options_.size, ", ",
            options_.buffer_size, " and ", options_.batch_size, ". Correct them.");
  D9D_CHECK(options_.order == BufferOrder::kLegacy || options_.buffer_size % options_.batch_size == 0, ConfigError,
            "[data::BufferSortedOrder] expected buffer_size to be a multiple of batch_size = ", options_.batch_size,
            ", got ", options_.buffer_size, ". Change one of the two: a batch would have items of two buffers.");
}

std::int64_t BufferSortedOrder::operator()(std::int64_t index, std::int64_t epoch) const {
  D9D_ASSERT(index >= 0 && index < options_.size, "index ", index, " of an order of ", options_.size);
  const std::int64_t buffer = index / options_.buffer_size;
  const bool is_legacy = options_.order == BufferOrder::kLegacy && epoch == 0;
  const auto items = recent_.get(epoch, buffer, [&] { return is_legacy ? legacy(buffer) : keyed(epoch, buffer); });
  return (*items)[static_cast<std::size_t>(index % options_.buffer_size)];
}

BufferSortedOrder::Items BufferSortedOrder::range_of(std::int64_t buffer) const {
  const std::int64_t first = buffer * options_.buffer_size;
  Items items(static_cast<std::size_t>(std::min(options_.buffer_size, options_.size - first)));
  std::iota(items.begin(), items.end(), first);
  return items;
}

BufferSortedOrder::Items BufferSortedOrder::keyed(std::int64_t epoch, std::int64_t buffer) const {
  Items items = range_of(buffer);
  if (options_.shuffle) {
    const Permutation order(options_.size, {.seed = options_.seed, .epoch = epoch});
    for (std::int64_t& item : items) item = order(item);
  }
  const std::uint64_t seed = philox_key(options_.seed, "buffer_sort", cat(epoch, "/", buffer));
  std::int64_t stream = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> by_key;  // ties stay in the random order
  for (const std::int64_t item : permuted(items, seed, stream++)) by_key.emplace_back(options_.sort_key(item), item);
  std::ranges::stable_sort(by_key, {}, &std::pair<std::int64_t, std::int64_t>::first);

  const std::int64_t num_full = std::ssize(items) / options_.batch_size;
  Items batch_order(static_cast<std::size_t>(num_full));
  std::iota(batch_order.begin(), batch_order.end(), 0);
  batch_order = permuted(batch_order, seed, stream++);
  if (std::ssize(items) % options_.batch_size != 0) batch_order.push_back(num_full);
  Items result;
  for (const std::int64_t batch : batch_order) {
    Items members;
    const std::int64_t first = batch * options_.batch_size;
    const std::int64_t last = std::min(first + options_.batch_size, std::ssize(by_key));
    for (std::int64_t i = first; i < last; ++i) members.push_back(by_key[i].second);
    std::ranges::copy(permuted(members, seed, stream++), std::back_inserter(result));
  }
  return result;
}

// The state of the generator at a buffer depends on all earlier buffers, so this function computes the earlier ones
// too, if it has not before.
BufferSortedOrder::Items BufferSortedOrder::legacy(std::int64_t buffer) const {
  const std::lock_guard lock(legacy_mutex_);
  if (!legacy_random_ || buffer < legacy_next_) {
    legacy_random_.emplace(options_.seed ^ kLegacySeedMask);
    legacy_next_ = 0;
  }
  Items result;
  for (; legacy_next_ <= buffer; ++legacy_next_) {
    std::vector<std::tuple<std::int64_t, double, std::int64_t>> sorted;
    for (const std::int64_t item : range_of(legacy_next_)) {
      const double draw = legacy_random_->uniform();
      sorted.emplace_back(options_.sort_key(item), draw, item);
    }
    std::ranges::sort(sorted);
    std::vector<Items> batches;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      if (i % static_cast<std::size_t>(options_.batch_size) == 0) batches.emplace_back();
      batches.back().push_back(std::get<2>(sorted[i]));
    }
    legacy_random_->shuffle(std::span(batches));
    result.clear();
    for (Items& batch : batches) {
      legacy_random_->shuffle(std::span(batch));
      std::ranges::copy(batch, std::back_inserter(result));
    }
  }
  return result;
}

}  // namespace d9d
