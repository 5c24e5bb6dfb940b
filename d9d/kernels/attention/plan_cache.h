// A least-recently-used cache of plans that are costly to make. Callers hold a shared pointer, so a plan that the cache
// drops lives until its last user releases it.
//
// Example
//   PlanCache<Key, Plan> cache(/*max_plans=*/512);
//   const std::shared_ptr<const Plan> plan = cache.get(key, [&] { return make_plan(key); });
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace d9d::kernels::detail {

// Not thread-safe. Key must be ordered.
template <class Key, class Plan>
class PlanCache {
 public:
  explicit PlanCache(std::size_t max_plans) : max_plans_(max_plans) {}

  // The key's plan. If it is not cached, it comes from make(), and a full cache drops the plan that was least recently
  // asked for. If make() throws, the cache stays unchanged.
  template <class Make>
  [[nodiscard]] std::shared_ptr<const Plan> get(const Key& key, Make&& make) {
    auto found = entries_.find(key);
    if (found == entries_.end()) {
      auto plan = std::make_shared<const Plan>(std::forward<Make>(make)());
      if (entries_.size() >= max_plans_) drop_oldest();
      found = entries_.emplace(key, Entry{.plan = std::move(plan)}).first;
    }
    found->second.last_use = ++num_uses_;
    return found->second.plan;
  }

  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::shared_ptr<const Plan> plan;
    std::uint64_t last_use = 0;
  };

  void drop_oldest() {
    const auto is_older = [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; };
    if (const auto oldest = std::ranges::min_element(entries_, is_older); oldest != entries_.end()) {
      entries_.erase(oldest);
    }
  }

  std::size_t max_plans_;
  std::map<Key, Entry> entries_;
  std::uint64_t num_uses_ = 0;
};

}  // namespace d9d::kernels::detail
