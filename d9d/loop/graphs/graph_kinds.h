// Decides when each kind of work is captured in graphs: after it has run eagerly in a few steps. Work with equal keys
// (graph_key.h) is of one kind.
//
// Example
//   GraphKinds<Captured> kinds(config);
//   if (Captured* const captured = kinds.find(key)) {     // null: run it eagerly
//     if (!captured->is_captured()) capture(*captured);
//     replay(*captured);
//   }
//   kinds.end_step();
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>

#include "d9d/loop/config/trainer_config.h"

namespace d9d::detail {

// Captured: the graphs of one kind; default-constructible, with is_captured().
template <class Captured>
class GraphKinds {
 public:
  explicit GraphKinds(const CudaGraphConfig& config) : config_(config) {}

  // Returns the graphs of the kind with this key, to capture or to replay; null if the work must run eagerly. Kinds
  // that occur in the same steps are also captured in the same step, so that the memory of all their eager runs is
  // freed before the first graph allocates its own. The returned object does not move.
  [[nodiscard]] Captured* find(const std::string& key) {
    auto found = kinds_.find(key);
    if (found != kinds_.end() && found->second.captured.is_captured()) return &found->second.captured;
    if (num_captured() == config_.max_graphs) {
      std::erase_if(kinds_, [](const auto& entry) { return !entry.second.captured.is_captured(); });
      return nullptr;
    }
    if (found == kinds_.end()) {
      if (size() - num_captured() == kMaxWaiting) forget_oldest();
      found = kinds_.try_emplace(key).first;
    }
    Kind& kind = found->second;
    if (kind.last_step != step_) ++kind.num_steps;
    kind.last_step = step_;
    return kind.num_steps > config_.num_warm_up_steps ? &kind.captured : nullptr;
  }
  void end_step() { ++step_; }
  void clear() { kinds_.clear(); }

  [[nodiscard]] std::int64_t num_captured() const {
    return std::ranges::count_if(kinds_, [](const auto& entry) { return entry.second.captured.is_captured(); });
  }
  void for_each(const auto& use) const {
    for (const auto& [key, kind] : kinds_) use(kind.captured);
  }
  // Returns the number of captured kinds plus the number of kinds that wait for capture. At most kMaxWaiting kinds
  // wait; a further one replaces the kind that occurred least recently.
  [[nodiscard]] std::int64_t size() const { return std::ssize(kinds_); }
  static constexpr std::int64_t kMaxWaiting = 64;

 private:
  struct Kind {
    std::int64_t num_steps = 0;  // number of steps in which the kind occurred
    std::int64_t last_step = -1;
    Captured captured = {};
  };

  // Drops the kind that occurred least recently among those that are not captured.
  void forget_oldest() {
    auto oldest = kinds_.end();
    for (auto entry = kinds_.begin(); entry != kinds_.end(); ++entry) {
      if (entry->second.captured.is_captured()) continue;
      if (oldest == kinds_.end() || entry->second.last_step < oldest->second.last_step) oldest = entry;
    }
    kinds_.erase(oldest);
  }

  CudaGraphConfig config_;
  std::map<std::string, Kind> kinds_;  // by key
  std::int64_t step_ = 0;
};

}  // namespace d9d::detail
