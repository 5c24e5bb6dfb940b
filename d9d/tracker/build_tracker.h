// Builds the tracker of a configuration.
//
// Example
//   const auto tracker = d9d::build_tracker(d9d::TensorboardTrackerConfig{.log_dir = "runs/a"}, logger);
#pragma once

#include <memory>

#include "d9d/base/log.h"
#include "d9d/tracker/config.h"
#include "d9d/tracker/tracker.h"

namespace d9d {

// `logger`: where the provider "log" prints. Throws ConfigError for a provider that this version does not have.
[[nodiscard]] std::unique_ptr<Tracker> build_tracker(const TrackerConfig& config, const Logger& logger);

}  // namespace d9d
