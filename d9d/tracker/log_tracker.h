// Prints scalars to a logger, one line for each value: "step 3 (stage=train): loss=2.5", with six significant digits.
//
// Example
//   const auto run = d9d::LogTracker().open({.name = "pretrain", .log = logger});
//   run->write({.name = "loss", .step = 3}, 2.5);  // [d9d] [rank:0] 12:34:56 - INFO - step 3: loss=2.5
//
// Histograms, texts and pictures are not printed.
#pragma once

#include <memory>

#include "d9d/tracker/tracker.h"

namespace d9d {

class LogTracker final : public Tracker {
 public:
  [[nodiscard]] std::unique_ptr<TrackerRun> open(const RunInfo& info) const override;
};

}  // namespace d9d
