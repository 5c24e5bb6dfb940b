#include "d9d/tracker/build_tracker.h"

#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/config/name_list.h"
#include "d9d/tracker/guarded_tracker.h"
#include "d9d/tracker/helper/helper_tracker.h"
#include "d9d/tracker/jsonl_tracker.h"
#include "d9d/tracker/log_tracker.h"
#include "d9d/tracker/multi_tracker.h"
#include "d9d/tracker/null_tracker.h"
#include "d9d/tracker/tensorboard/tensorboard_tracker.h"

namespace d9d {
namespace {

using TrackerPtr = std::unique_ptr<Tracker>;

TrackerPtr build_custom(const CustomTrackerConfig& config, const TrackerFactories& own) {
  if (const auto factory = own.find(config.name); factory != own.end()) {
    TrackerPtr tracker = factory->second ? factory->second(config.options) : nullptr;
    D9D_CHECK(tracker != nullptr, StateError, "[tracker::custom] expected a tracker from the function of '",
              config.name, "' in TrainerParts::trackers, got null. Return one.");
    return tracker;
  }
  std::vector<std::string_view> names;
  for (const auto& [name, unused] : own) names.push_back(name);
  throw ConfigError(cat("[tracker::custom] expected the name of a tracker of this program, ",
                        names.empty() ? "which has none" : cat("one of ", quoted_list(names)), ", got '", config.name,
                        "'. Correct the name, or add the tracker to TrainerParts::trackers."));
}

// One overload for each provider: std::visit does not compile if one is missing.
struct Build {
  const TrackerFactories& own;

  TrackerPtr operator()(const NullTrackerConfig&) const { return std::make_unique<NullTracker>(); }
  TrackerPtr operator()(const LogTrackerConfig&) const { return std::make_unique<LogTracker>(); }
  TrackerPtr operator()(const JsonlTrackerConfig& config) const { return std::make_unique<JsonlTracker>(config.path); }
  TrackerPtr operator()(const TensorboardTrackerConfig& config) const {
    return std::make_unique<TensorboardTracker>(config.log_dir);
  }
  TrackerPtr operator()(const AimTrackerConfig& config) const { return std::make_unique<HelperTracker>(config); }
  TrackerPtr operator()(const WandbTrackerConfig& config) const { return std::make_unique<HelperTracker>(config); }
  TrackerPtr operator()(const MlflowTrackerConfig& config) const { return std::make_unique<HelperTracker>(config); }
  TrackerPtr operator()(const CustomTrackerConfig& config) const { return build_custom(config, own); }
};

template <class Config>
TrackerPtr build_guarded(const Config& config, const TrackerFactories& own) {
  return std::make_unique<GuardedTracker>(Build{own}(config), std::string(Config::kTag.value));
}

TrackerPtr build_all(const MultiTrackerConfig& config, const TrackerFactories& own) {
  std::vector<std::shared_ptr<const Tracker>> trackers;
  for (const auto& one : config.trackers) {
    trackers.push_back(std::visit([&](const auto& of_one) { return build_guarded(of_one, own); }, one));
  }
  return std::make_unique<MultiTracker>(std::move(trackers));
}

}  // namespace

std::unique_ptr<Tracker> build_tracker(const TrackerConfig& config, const TrackerFactories& own) {
  return std::visit(
      [&]<class Config>(const Config& one) {
        if constexpr (std::is_same_v<Config, MultiTrackerConfig>) {
          return build_all(one, own);
        } else {
          return build_guarded(one, own);
        }
      },
      config);
}

}  // namespace d9d
