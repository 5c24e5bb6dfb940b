// Aim, W&B and MLflow: their official SDKs in a helper process, which docs/trackers.md describes.
//
// Example
//   const d9d::HelperTracker tracker(d9d::AimTrackerConfig{.repo = "runs/aim"});  // starts the process, which imports
//   ...                                                                         // while the model is built
//   const auto run = tracker.open({.name = "pretrain", .log = log});
//
// Build it before the first use of a GPU. Throws ConfigError if the interpreter or the SDK is missing. open() waits
// until the SDK has opened the run and throws IoError if it does not. From then on neither the SDK nor its process
// delays or ends the training (helper_feed.h).
#pragma once

#include <memory>
#include <variant>

#include "d9d/tracker/config.h"
#include "d9d/tracker/helper/helper_feed.h"
#include "d9d/tracker/helper/helper_program.h"
#include "d9d/tracker/tracker.h"

namespace d9d {

class HelperTracker final : public Tracker {
 public:
  using Config = std::variant<AimTrackerConfig, WandbTrackerConfig, MlflowTrackerConfig>;
  explicit HelperTracker(const Config& config, const HelperLimits& limits = {});

  [[nodiscard]] std::unique_ptr<TrackerRun> open(const RunInfo& info) const override;

 private:
  HelperProgram program_;
  HelperLimits limits_;
  mutable std::unique_ptr<LineProcess> process_;  // for the next open(), which takes it; null: it starts one
};

}  // namespace d9d
