// Trackers record the values of a run: on the console, in a file, for TensorBoard.
//
// Example
//   const auto tracker = d9d::build_tracker(config, logger);
//   const auto run = tracker->open({.name = "pretrain", .hparams = hparams});
//   run->write({.name = "loss", .step = 3, .context = {{"stage", "train"}}}, 2.5);
//   run->close(d9d::RunOutcome::kCompleted);
//
// Local, blocking; each run may be used by one thread only. docs/trackers.md shows how to write another tracker.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace d9d {

struct RunInfo;  // d9d/tracker/run_info.h

// Distinguishes series of one name, for example {"stage": "train"}.
using TrackerContext = std::map<std::string, std::string>;

// The series and step of a value.
struct TrackerPoint {
  std::string name;       // may contain slashes: metric/accuracy
  std::int64_t step = 0;  // 0-based; -1: before the first step
  TrackerContext context = {};
};

// Counts of integers: bin i covers [i, i + 1).
struct CountHistogram {
  std::vector<double> counts;
};

// A text; Markdown where the tracker shows that.
struct TrackerText {
  std::string text;
};

// A picture as the text of an SVG file. Trackers that show none leave it out.
struct TrackerPicture {
  std::string svg;
};

using TrackerValue = std::variant<double, CountHistogram, TrackerText, TrackerPicture>;

enum class RunOutcome {
  kCompleted,
  kFailed,
  kStopped,  // by a signal before its last step: a later job goes on
};

// An open run. Implementations override the private functions and call close_in_destructor() in their destructor.
class TrackerRun {
 public:
  TrackerRun() = default;
  virtual ~TrackerRun() = default;  // closes as failed unless close() was called; never throws
  TrackerRun(const TrackerRun&) = delete;
  TrackerRun& operator=(const TrackerRun&) = delete;

  // Records one value. Steps must be in ascending order. The value may be buffered until the step changes or flush() is
  // called. Throws StateError after close().
  void write(const TrackerPoint& point, const TrackerValue& value);

  // Writes all buffered values to the system. Throws StateError after close().
  void flush();

  // Flushes and ends the run. Idempotent: later outcomes are ignored.
  void close(RunOutcome outcome);

  // The state that a later process needs to resume this run (RunInfo::resume_state). Checkpoints store it, after
  // flush().
  [[nodiscard]] virtual nlohmann::ordered_json state() const;

 protected:
  void close_in_destructor() noexcept;

 private:
  virtual void do_write(const TrackerPoint& point, const TrackerValue& value) = 0;
  virtual void do_flush() {}
  virtual void do_close(RunOutcome) {}  // called once; must also write buffered values

  bool is_closed_ = false;
};

class Tracker {
 public:
  virtual ~Tracker() = default;

  // Starts a run, or resumes the one that info.resume_state describes. Throws IoError if its file or folder cannot be
  // opened.
  [[nodiscard]] virtual std::unique_ptr<TrackerRun> open(const RunInfo& info) const = 0;
};

// The name of a series for trackers without contexts: the context's values in the order of their keys, then the name,
// joined with slashes: train/loss.
[[nodiscard]] std::string series_name(const TrackerPoint& point);

}  // namespace d9d
