// Caches the most recently used buffers of an order that is computed one buffer at a time. Thread-safe.
//
// Example
//   RecentBuffers<std::vector<std::int64_t>> recent;
//   const auto items = recent.get(epoch, buffer, [&] { return sort(epoch, buffer); });
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace d9d {

template <class Value>
class RecentBuffers {
 public:
  // Returns the cached result for this epoch and buffer; if there is none, calls make() and caches its result. Threads
  // that ask for one buffer at the same time may each call make().
  template <class Make>
  [[nodiscard]] std::shared_ptr<const Value> get(std::int64_t epoch, std::int64_t buffer, const Make& make) {
    if (auto found = find(epoch, buffer)) return found;
    auto value = std::make_shared<const Value>(make());
    const std::lock_guard lock(mutex_);
    entries_.push_front({epoch, buffer, value});
    if (entries_.size() > kMost) entries_.pop_back();
    return value;
  }

 private:
  static constexpr std::size_t kMost = 8;  // workers near the end of a buffer read from several buffers
  struct Entry {
    std::int64_t epoch;
    std::int64_t buffer;
    std::shared_ptr<const Value> value;
  };

  std::shared_ptr<const Value> find(std::int64_t epoch, std::int64_t buffer) {
    const std::lock_guard lock(mutex_);
    const auto is_it = [&](const Entry& entry) { return entry.epoch == epoch && entry.buffer == buffer; };
    const auto found = std::find_if(entries_.begin(), entries_.end(), is_it);
    if (found == entries_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found);
    return found->value;
  }

  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace d9d
