// The experiment tracker of a job: one of the records below, selected in JSON by "provider".
//
// Example
//   {"provider": "jsonl", "path": "runs/a.jsonl"}
//   TrackerConfig config = TensorboardTrackerConfig{.log_dir = "runs/a"};
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"

namespace d9d {

// Writes nothing.
struct NullTrackerConfig {
  static constexpr Tag kTag = {"provider", "null"};
  static constexpr auto fields() { return record<NullTrackerConfig>(); }
};

// Prints scalars to the log.
struct LogTrackerConfig {
  static constexpr Tag kTag = {"provider", "log"};
  static constexpr auto fields() { return record<LogTrackerConfig>(); }
};

// Writes one JSON object, on one line, for each step.
struct JsonlTrackerConfig {
  std::filesystem::path path = {};  // the file, to which a job that continues appends

  static constexpr Tag kTag = {"provider", "jsonl"};
  static constexpr auto fields() { return record<JsonlTrackerConfig>(required("path", &JsonlTrackerConfig::path)); }
};

// TensorBoard event files.
struct TensorboardTrackerConfig {
  std::filesystem::path log_dir = {};  // used directly: runs have no sub-directories

  static constexpr Tag kTag = {"provider", "tensorboard"};
  static constexpr auto fields() {
    return record<TensorboardTrackerConfig>(required("log_dir", &TensorboardTrackerConfig::log_dir));
  }
};

// Aim, by its SDK in a helper process, as W&B and MLflow are.
struct AimTrackerConfig {
  std::string repo = {};                              // path or address of the Aim repository
  bool log_system_params = true;                      // packages, environment and hardware
  bool capture_terminal_logs = true;                  // what the helper process prints
  std::int64_t system_tracking_interval = 10;         // seconds
  std::optional<std::filesystem::path> python = {};   // interpreter that has aim; null: that of `make trackers`
  std::filesystem::path spool_dir = "tracker_spool";  // folder of values that the SDK did not take in time

  static constexpr Tag kTag = {"provider", "aim"};
  static constexpr auto fields() {
    using Aim = AimTrackerConfig;
    return record<Aim>(required("repo", &Aim::repo), defaulted("log_system_params", &Aim::log_system_params),
                       defaulted("capture_terminal_logs", &Aim::capture_terminal_logs),
                       defaulted("system_tracking_interval", &Aim::system_tracking_interval, at_least(1)),
                       defaulted("python", &Aim::python), defaulted("spool_dir", &Aim::spool_dir));
  }
};

enum class WandbMode { kOnline, kOffline };
constexpr auto enum_names(WandbMode) {
  return std::to_array<EnumName<WandbMode>>({{WandbMode::kOnline, "online"}, {WandbMode::kOffline, "offline"}});
}

// Weights & Biases.
struct WandbTrackerConfig {
  std::string project = {};                           // which the run belongs to
  std::optional<std::string> entity = {};             // user or team; null: the account's default
  std::optional<std::string> group = {};              // of runs; null: none
  std::vector<std::string> tags = {};                 // of the run
  WandbMode mode = WandbMode::kOnline;                // offline: files only
  std::optional<std::filesystem::path> dir = {};      // folder of its files; null: wandb's own
  bool capture_terminal_logs = false;                 // what the helper process prints
  std::optional<std::filesystem::path> python = {};   // interpreter that has wandb; null: that of `make trackers`
  std::filesystem::path spool_dir = "tracker_spool";  // folder of values that the SDK did not take in time

  static constexpr Tag kTag = {"provider", "wandb"};
  static constexpr auto fields() {
    using Wandb = WandbTrackerConfig;
    return record<Wandb>(required("project", &Wandb::project), defaulted("entity", &Wandb::entity),
                         defaulted("group", &Wandb::group), defaulted("tags", &Wandb::tags),
                         defaulted("mode", &Wandb::mode), defaulted("dir", &Wandb::dir),
                         defaulted("capture_terminal_logs", &Wandb::capture_terminal_logs),
                         defaulted("python", &Wandb::python), defaulted("spool_dir", &Wandb::spool_dir));
  }
};

// MLflow. It has no histograms.
struct MlflowTrackerConfig {
  std::string experiment = {};                        // created if absent
  std::optional<std::string> tracking_uri = {};       // address of the server or the files; null: MLflow's own default
  std::optional<std::filesystem::path> python = {};   // interpreter that has mlflow; null: that of `make trackers`
  std::filesystem::path spool_dir = "tracker_spool";  // folder of values that the SDK did not take in time

  static constexpr Tag kTag = {"provider", "mlflow"};
  static constexpr auto fields() {
    using Mlflow = MlflowTrackerConfig;
    return record<Mlflow>(required("experiment", &Mlflow::experiment), defaulted("tracking_uri", &Mlflow::tracking_uri),
                          defaulted("python", &Mlflow::python), defaulted("spool_dir", &Mlflow::spool_dir));
  }
};

// A tracker of the program, by its name in TrainerParts::trackers.
struct CustomTrackerConfig {
  std::string name = {};                              // in the program's list
  nlohmann::json options = nlohmann::json::object();  // any object; goes to the tracker

  static constexpr Tag kTag = {"provider", "custom"};
  static constexpr auto fields() {
    return record<CustomTrackerConfig>(required("name", &CustomTrackerConfig::name),
                                       defaulted("options", &CustomTrackerConfig::options));
  }
};

template <class... More>
using TrackerVariant =
    std::variant<NullTrackerConfig, LogTrackerConfig, JsonlTrackerConfig, TensorboardTrackerConfig, AimTrackerConfig,
                 WandbTrackerConfig, MlflowTrackerConfig, CustomTrackerConfig, More...>;

// Writes every value to each of several trackers.
struct MultiTrackerConfig {
  std::vector<TrackerVariant<>> trackers = {};  // one or more, none of them a multi

  static constexpr Tag kTag = {"provider", "multi"};
  static constexpr auto fields() {
    return record<MultiTrackerConfig>(required("trackers", &MultiTrackerConfig::trackers));
  }
};

using TrackerConfig = TrackerVariant<MultiTrackerConfig>;

extern template const ValueType& json_type<TrackerConfig>();

}  // namespace d9d
