// Writes every value to several trackers.
//
// Example
//   const d9d::MultiTracker both(
//       {std::make_shared<d9d::LogTracker>(logger), std::make_shared<d9d::JsonlTracker>("run/metrics.jsonl")});
//   const auto run = both.open({.name = "pretrain"});
//
// An error of one tracker is thrown to the caller; close() first closes the other trackers. A resumed run identifies
// trackers by their position; a tracker that was added at the end starts fresh.
#pragma once

#include <memory>
#include <vector>

#include "d9d/tracker/tracker.h"

namespace d9d {

class MultiTracker final : public Tracker {
 public:
  explicit MultiTracker(std::vector<std::shared_ptr<const Tracker>> trackers);
  [[nodiscard]] std::unique_ptr<TrackerRun> open(const RunInfo& info) const override;

 private:
  std::vector<std::shared_ptr<const Tracker>> trackers_;
};

}  // namespace d9d
