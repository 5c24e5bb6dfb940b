#include "d9d/tracker/guarded_tracker.h"

#include <exception>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/tracker/run_info.h"

namespace d9d {
namespace {

class GuardedRun final : public TrackerRun {
 public:
  GuardedRun(std::unique_ptr<TrackerRun> run, std::string name, Logger log)
      : run_(std::move(run)), name_(std::move(name)), log_(std::move(log)), state_(run_->state()) {}
  ~GuardedRun() override { close_in_destructor(); }

  [[nodiscard]] nlohmann::ordered_json state() const override { return state_; }

 private:
  void do_write(const TrackerPoint& point, const TrackerValue& value) override {
    guard([&] { run_->write(point, value); });
  }
  void do_flush() override {
    guard([&] {
      run_->flush();
      state_ = run_->state();
    });
  }
  void do_close(RunOutcome outcome) override {
    guard([&] { run_->close(outcome); });
  }

  template <class Work>
  void guard(const Work& work) {
    if (has_failed_) return;
    try {
      work();
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {
      fail("an exception that is no std::exception");
    }
  }
  void fail(const char* reason) {
    has_failed_ = true;
    log_.warning("the tracker '", name_, "' records nothing more in this run: ", reason);
  }

  std::unique_ptr<TrackerRun> run_;
  const std::string name_;
  const Logger log_;
  nlohmann::ordered_json state_;  // after the last flush
  bool has_failed_ = false;
};

}  // namespace

GuardedTracker::GuardedTracker(std::shared_ptr<const Tracker> tracker, std::string name)
    : tracker_(std::move(tracker)), name_(std::move(name)) {}

std::unique_ptr<TrackerRun> GuardedTracker::open(const RunInfo& info) const {
  std::unique_ptr<TrackerRun> run = tracker_->open(info);
  D9D_CHECK(run != nullptr, StateError, "[tracker::open] expected a run of the tracker '", name_,
            "', got null. Return one, or throw why there is none.");
  return std::make_unique<GuardedRun>(std::move(run), name_, info.log);
}

}  // namespace d9d
