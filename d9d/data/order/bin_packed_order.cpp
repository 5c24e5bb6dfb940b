#include "d9d/data/order/bin_packed_order.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/data/order/permutation.h"

namespace d9d {

namespace {

struct Placed {
  std::int64_t length;
  std::int64_t tie;       // the order among items of equal length
  std::int64_t position;  // position within the buffer
};

// Returns the positions of each bin, ascending; bins are ordered by their first position.
std::vector<std::vector<std::int64_t>> best_fit_decreasing(std::vector<Placed> items, std::int64_t capacity) {
  std::ranges::sort(items, [](const Placed& a, const Placed& b) {
    return std::pair(-a.length, a.tie) < std::pair(-b.length, b.tie);
  });
  std::vector<std::vector<std::int64_t>> bins;
  std::multimap<std::int64_t, std::size_t> by_room;
  for (const Placed& item : items) {
    const auto fullest = by_room.lower_bound(item.length);
    std::int64_t room = capacity;
    std::size_t bin = bins.size();
    if (fullest == by_room.end()) {
      bins.emplace_back();
    } else {
      std::tie(room, bin) = *fullest;
      by_room.erase(fullest);
    }
    bins[bin].push_back(item.position);
    if (room > item.length) by_room.emplace(room - item.length, bin);
  }
  for (auto& bin : bins) std::ranges::sort(bin);
  std::ranges::sort(bins);
  return bins;
}

}  // namespace

BinPackedOrder::BinPackedOrder(Options options) : options_(std::move(options)) {
  D9D_CHECK(options_.size >= 1 && options_.capacity >= 1 && options_.buffer_size >= 1, ConfigError,
            "[data::BinPackedOrder] expected size, capacity and buffer_size >= 1, got ", options_.size, ", ",
            options_.capacity, " and ", options_.buffer_size, ". Correct them.");
  for (std::int64_t buffer = 0; buffer * options_.buffer_size < options_.size; ++buffer) {
    num_bins_.push_back(std::ssize(bins_of(0, buffer)));
    size_ += num_bins_.back();
  }
}

std::vector<std::int64_t> BinPackedOrder::operator()(std::int64_t bin, std::int64_t epoch) const {
  D9D_ASSERT(bin >= 0 && bin < size(), "bin ", bin, " of ", size());
  if (!options_.shuffle) epoch = 0;
  const auto places = recent_places_.get(epoch, /*buffer=*/0, [&] { return places_of(epoch); });
  const auto [first_bin, buffer] = *std::prev(std::ranges::upper_bound(*places, bin, {}, &Place::first_bin));
  const auto bins = recent_.get(epoch, buffer, [&, buffer = buffer] { return bins_of(epoch, buffer); });
  return (*bins)[static_cast<std::size_t>(bin - first_bin)];
}

// The names passed to philox_key() select the random numbers: changing a name changes the order of the data.

// Returns the buffers in the order in which the epoch reads them, each with the index of its first bin.
std::vector<BinPackedOrder::Place> BinPackedOrder::places_of(std::int64_t epoch) const {
  const Permutation order(std::ssize(num_bins_),
                          {.seed = philox_key(options_.seed, "packed_order", "buffers"), .epoch = epoch});
  std::vector<Place> places;
  std::int64_t first_bin = 0;
  for (std::int64_t i = 0; i < std::ssize(num_bins_); ++i) {
    const std::int64_t buffer = options_.shuffle ? order(i) : i;
    places.push_back({first_bin, buffer});
    first_bin += num_bins_[buffer];
  }
  return places;
}

BinPackedOrder::Bins BinPackedOrder::bins_of(std::int64_t epoch, std::int64_t buffer) const {
  const std::int64_t first = buffer * options_.buffer_size;
  const std::int64_t count = std::min(options_.buffer_size, options_.size - first);
  std::vector<std::int64_t> documents;
  const Permutation members(options_.size, {.seed = philox_key(options_.seed, "packed_order", "members"), .epoch = 0});
  for (std::int64_t i = first; i < first + count; ++i) documents.push_back(options_.shuffle ? members(i) : i);

  const Permutation ties(count,
                         {.seed = philox_key(options_.seed, "packed_order", std::to_string(buffer)), .epoch = epoch});
  std::vector<Placed> items;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t length = options_.length(documents[i]);
    D9D_ASSERT(length >= 1 && length <= options_.capacity, "length ", length, " of capacity ", options_.capacity);
    items.push_back({length, options_.shuffle ? ties(i) : i, i});
  }
  const Bins positions = best_fit_decreasing(std::move(items), options_.capacity);
  const Permutation order(
      std::ssize(positions),
      {.seed = philox_key(options_.seed, "packed_order", cat("packs of ", buffer)), .epoch = epoch});
  Bins bins;
  for (std::int64_t i = 0; i < std::ssize(positions); ++i) {
    auto& bin = bins.emplace_back();
    for (const std::int64_t position : positions[options_.shuffle ? order(i) : i]) {
      bin.push_back(documents[position]);
    }
  }
  return bins;
}

}  // namespace d9d
