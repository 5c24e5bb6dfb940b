#include "d9d/tracker/tracker.h"

#include <exception>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

namespace d9d {

void TrackerRun::write(const TrackerPoint& point, const TrackerValue& value) {
  D9D_CHECK(!is_closed_, StateError, "[tracker::write] expected values before the run is closed, got '", point.name,
            "' of step ", point.step, " after it. Close the run last.");
  do_write(point, value);
}

void TrackerRun::flush() {
  D9D_CHECK(!is_closed_, StateError, "[tracker::flush] expected an open run, got a closed one. Close the run last.");
  do_flush();
}

void TrackerRun::close(RunOutcome outcome) {
  if (std::exchange(is_closed_, true)) return;
  do_close(outcome);
}

void TrackerRun::close_in_destructor() noexcept {
  try {
    close(RunOutcome::kFailed);
  } catch (...) {
    // The run already ends with an error of its own, which an error of its tracker must not replace.
  }
}

nlohmann::ordered_json TrackerRun::state() const { return nlohmann::ordered_json::object(); }

std::string series_name(const TrackerPoint& point) {
  std::string name;
  for (const auto& [key, value] : point.context) name += value + '/';
  return name + point.name;
}

}  // namespace d9d
