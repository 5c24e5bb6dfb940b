#include "d9d/tracker/tensorboard/tensorboard_tracker.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/io/append_file.h"
#include "d9d/base/io/folder_lock.h"
#include "d9d/base/io/posix.h"
#include "d9d/tracker/run_info.h"
#include "d9d/tracker/tensorboard/event.h"
#include "d9d/tracker/tensorboard/run_markdown.h"
#include "d9d/tracker/tensorboard/wire_format.h"

namespace d9d {
namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

// events.out.tfevents.<seconds>.<host>.<pid>.<n>. Readers process the files of a folder in the order of their names.
std::filesystem::path new_event_file(const std::filesystem::path& log_dir) {
  std::array<char, 32> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%010lld", static_cast<long long>(wall_seconds()));
  const std::string stem = cat("events.out.tfevents.", seconds.data(), '.', host_name(), '.', ::getpid(), '.');
  std::error_code error;
  int n = 0;
  while (std::filesystem::exists(log_dir / (stem + std::to_string(n)), error)) ++n;
  return log_dir / (stem + std::to_string(n));
}

// The curves of two jobs in one folder would be one.
std::unique_ptr<FolderLock> lock_of_folder(const std::filesystem::path& log_dir) {
  detail::make_writable_folder(log_dir);
  return std::make_unique<FolderLock>(log_dir, log_dir / ".events.lock");
}

class TensorboardRun final : public TrackerRun {
 public:
  TensorboardRun(const std::filesystem::path& log_dir, std::int64_t last_step)
      : lock_(lock_of_folder(log_dir)), file_(new_event_file(log_dir)), last_step_(last_step) {
    add(file_version_event(stamp(0)));
    add(session_start_event(stamp(last_step + 1)));
  }
  ~TensorboardRun() override { close_in_destructor(); }

  void write_text(std::string_view tag, std::string_view markdown) {
    add(text_event(stamp(0), tag, markdown));
    do_flush();
  }

  [[nodiscard]] nlohmann::ordered_json state() const override { return state_of_last_step(last_step_); }

 private:
  static EventStamp stamp(std::int64_t step) { return {.wall_seconds = wall_seconds(), .step = step}; }
  void add(const std::string& event) { pending_ += tf_record(event); }

  void do_write(const TrackerPoint& point, const TrackerValue& value) override {
    if (point.step != last_step_) do_flush();
    last_step_ = point.step;
    if (const double* scalar = std::get_if<double>(&value)) {
      add(scalar_event(stamp(point.step), series_name(point), *scalar));
    } else if (const auto* histogram = std::get_if<CountHistogram>(&value)) {
      add(histogram_event(stamp(point.step), series_name(point), histogram->counts));
    } else if (const auto* text = std::get_if<TrackerText>(&value)) {
      add(text_event(stamp(point.step), series_name(point), text->text));
    }  // and no pictures, which TensorBoard has as pixels only
  }
  void do_flush() override { file_.write(std::exchange(pending_, {})); }
  void do_close(RunOutcome) override {
    do_flush();
    file_.close();
    lock_.reset();
  }

  std::unique_ptr<FolderLock> lock_;  // until the run is closed
  AppendFile file_;
  std::string pending_;  // records of step last_step_
  std::int64_t last_step_;
};

}  // namespace

TensorboardTracker::TensorboardTracker(std::filesystem::path log_dir) : log_dir_(std::move(log_dir)) {}

std::unique_ptr<TrackerRun> TensorboardTracker::open(const RunInfo& info) const {
  const auto last_step = resumed_last_step(info);
  auto run = std::make_unique<TensorboardRun>(log_dir_, last_step.value_or(kNoStep));
  if (last_step.value_or(kNoStep) == kNoStep) run->write_text("run", run_markdown(info));
  return run;
}

}  // namespace d9d
