// Records nothing: for ranks that do not report, and for runs without a tracker.
//
// Example
//   const auto run = d9d::NullTracker().open({.name = "silent"});
#pragma once

#include <memory>

#include "d9d/tracker/tracker.h"

namespace d9d {

class NullTracker final : public Tracker {
 public:
  [[nodiscard]] std::unique_ptr<TrackerRun> open(const RunInfo& info) const override;
};

}  // namespace d9d
