#include "d9d/tracker/multi_tracker.h"

#include <exception>
#include <utility>

#include "d9d/tracker/run_info.h"

namespace d9d {
namespace {

class MultiRun final : public TrackerRun {
 public:
  explicit MultiRun(std::vector<std::unique_ptr<TrackerRun>> runs) : runs_(std::move(runs)) {}

  [[nodiscard]] nlohmann::ordered_json state() const override {
    auto states = nlohmann::ordered_json::array();
    for (const auto& run : runs_) states.push_back(run->state());
    return states;
  }

 private:
  void do_write(const TrackerPoint& point, const TrackerValue& value) override {
    for (const auto& run : runs_) run->write(point, value);
  }
  void do_flush() override {
    for_each_despite_errors([](TrackerRun& run) { run.flush(); });
  }
  void do_close(RunOutcome outcome) override {
    for_each_despite_errors([&](TrackerRun& run) { run.close(outcome); });
  }

  // Visits every run, then throws the first error.
  template <class Visit>
  void for_each_despite_errors(const Visit& visit) {
    std::exception_ptr first_error;
    for (const auto& run : runs_) {
      try {
        visit(*run);
      } catch (...) {
        if (!first_error) first_error = std::current_exception();
      }
    }
    if (first_error) std::rethrow_exception(first_error);
  }

  std::vector<std::unique_ptr<TrackerRun>> runs_;  // each closes itself when destroyed
};

}  // namespace

MultiTracker::MultiTracker(std::vector<std::shared_ptr<const Tracker>> trackers) : trackers_(std::move(trackers)) {}

std::unique_ptr<TrackerRun> MultiTracker::open(const RunInfo& info) const {
  std::vector<std::unique_ptr<TrackerRun>> runs;
  for (std::size_t i = 0; i < trackers_.size(); ++i) {
    RunInfo own = info;
    const bool has_state = info.resume_state.is_array() && i < info.resume_state.size();
    own.resume_state = has_state ? info.resume_state[i] : nullptr;
    runs.push_back(trackers_[i]->open(own));
  }
  return std::make_unique<MultiRun>(std::move(runs));
}

}  // namespace d9d
