#include "d9d/tracker/build_tracker.h"

#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/tracker/jsonl_tracker.h"
#include "d9d/tracker/log_tracker.h"
#include "d9d/tracker/multi_tracker.h"
#include "d9d/tracker/null_tracker.h"
#include "d9d/tracker/tensorboard/tensorboard_tracker.h"

namespace d9d {
namespace {

using TrackerPtr = std::unique_ptr<Tracker>;

// One overload for each provider: std::visit does not compile if one is missing.
struct Build {
  const Logger& logger;

  TrackerPtr operator()(const NullTrackerConfig&) const { return std::make_unique<NullTracker>(); }
  TrackerPtr operator()(const LogTrackerConfig&) const { return std::make_unique<LogTracker>(logger); }
  TrackerPtr operator()(const JsonlTrackerConfig& config) const { return std::make_unique<JsonlTracker>(config.path); }
  TrackerPtr operator()(const TensorboardTrackerConfig& config) const {
    return std::make_unique<TensorboardTracker>(config.log_dir);
  }
  TrackerPtr operator()(const AimTrackerConfig& config) const { return refuse(config); }
  TrackerPtr operator()(const WandbTrackerConfig& config) const { return refuse(config); }
  TrackerPtr operator()(const MlflowTrackerConfig& config) const { return refuse(config); }
  TrackerPtr operator()(const MultiTrackerConfig& config) const {
    std::vector<std::shared_ptr<const Tracker>> trackers;
    for (const auto& one : config.trackers) trackers.push_back(std::visit(*this, one));
    return std::make_unique<MultiTracker>(std::move(trackers));
  }

  template <class Config>
  [[noreturn]] static TrackerPtr refuse(const Config&) {
    throw ConfigError(
        cat("[tracker::build_tracker] expected one of the providers null, log, jsonl, tensorboard, multi, got '",
            Config::kTag.value, "', which is not built in this version. Use tensorboard or jsonl."));
  }
};

}  // namespace

std::unique_ptr<Tracker> build_tracker(const TrackerConfig& config, const Logger& logger) {
  return std::visit(Build{logger}, config);
}

}  // namespace d9d
