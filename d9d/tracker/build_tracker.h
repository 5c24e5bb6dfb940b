// Builds the tracker of a configuration.
//
// Example
//   const auto tracker = d9d::build_tracker(d9d::TensorboardTrackerConfig{.log_dir = "runs/a"});
//   const d9d::TrackerFactories own = {{"csv", [](const nlohmann::json& options) {
//                                         return std::make_unique<CsvTracker>(options.at("path"));
//                                       }}};
//   const auto csv = d9d::build_tracker(d9d::CustomTrackerConfig{.name = "csv", .options = {{"path", "a.csv"}}}, own);
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "d9d/tracker/config.h"
#include "d9d/tracker/tracker.h"

namespace d9d {

// A program's own trackers by the names of CustomTrackerConfig. Each is called with the `options` of its record.
using TrackerFactory = std::function<std::unique_ptr<Tracker>(const nlohmann::json& options)>;
using TrackerFactories = std::map<std::string, TrackerFactory>;

// Each tracker is a GuardedTracker, and several are one MultiTracker. Starts the process of Aim, W&B or MLflow
// (HelperTracker). Throws ConfigError for a name that is not in `own`, and StateError if its function returns null.
[[nodiscard]] std::unique_ptr<Tracker> build_tracker(const TrackerConfig& config, const TrackerFactories& own = {});

}  // namespace d9d
