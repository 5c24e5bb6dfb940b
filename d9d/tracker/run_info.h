// The information that a tracker gets when a run opens.
//
// Example
//   const d9d::RunInfo info{.name = "pretrain", .hparams = {{"run", user_hparams}, {"params", {{"model", model}}}}};
//   const auto run = tracker->open(info);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "d9d/base/log.h"
#include "d9d/tracker/tracker.h"

namespace d9d {

struct RunInfo {
  std::string name;
  std::string description = {};
  nlohmann::ordered_json hparams = nlohmann::ordered_json::object();  // any nesting
  TrackerContext context = {{"stage", "train"}};                      // of most points; flat files need not repeat it
  nlohmann::ordered_json resume_state = nullptr;  // TrackerRun::state() of the run to resume. The state of another
                                                  // kind of tracker counts as none: the run is fresh
  Logger log = Logger();                          // where trackers print and warn
};

// The state of trackers that resume after their last step: {"last_step": n}.
inline constexpr std::int64_t kNoStep = -1;  // nothing has been written yet
[[nodiscard]] nlohmann::ordered_json state_of_last_step(std::int64_t last_step);
// None for a fresh run.
[[nodiscard]] std::optional<std::int64_t> resumed_last_step(const RunInfo& info);

}  // namespace d9d
