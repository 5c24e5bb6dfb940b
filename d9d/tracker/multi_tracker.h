// Hands every value to several trackers.
//
// Example
//   std::vector<std::unique_ptr<d9d::Tracker>> trackers;
//   trackers.push_back(std::make_unique<d9d::LogTracker>(logger));
//   trackers.push_back(std::make_unique<d9d::JsonlTracker>("run/metrics.jsonl"));
//   const auto run = d9d::MultiTracker(std::move(trackers)).open({.name = "pretrain"});
//
// An error of one tracker reaches the caller; closing closes the others first. A resumed run matches trackers by their
// position; one that was added at the end starts fresh.
#pragma once

#include <memory>
#include <vector>

#include "d9d/tracker/tracker.h"

namespace d9d {

class MultiTracker final : public Tracker {
 public:
  explicit MultiTracker(std::vector<std::unique_ptr<Tracker>> trackers);
  [[nodiscard]] std::unique_ptr<TrackerRun> open(const RunInfo& info) const override;

 private:
  std::vector<std::unique_ptr<Tracker>> trackers_;
};

}  // namespace d9d
