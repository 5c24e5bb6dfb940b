// A tracker that cannot end a training once its run is open: a disk that is full costs values, not the job.
//
// Example
//   const d9d::GuardedTracker tracker(std::make_shared<d9d::JsonlTracker>("metrics.jsonl"), "jsonl");
//   const auto run = tracker.open({.name = "pretrain", .log = log});  // may throw: a wrong path ends the job
//   run->write({.name = "loss"}, 2.5);                                // never throws for a reason of the tracker
//
// The first failure is one warning. The run then records nothing more, so that what it has recorded stays whole. Its
// state is that of the last flush. A job that resumes opens the tracker anew.
#pragma once

#include <memory>
#include <string>

#include "d9d/tracker/tracker.h"

namespace d9d {

class GuardedTracker final : public Tracker {
 public:
  // `name`: for the warning.
  GuardedTracker(std::shared_ptr<const Tracker> tracker, std::string name);
  // Throws what the tracker throws, and StateError for null.
  [[nodiscard]] std::unique_ptr<TrackerRun> open(const RunInfo& info) const override;

 private:
  std::shared_ptr<const Tracker> tracker_;
  std::string name_;
};

}  // namespace d9d
