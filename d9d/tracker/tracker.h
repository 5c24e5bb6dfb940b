// Trackers record the numbers of a run: on the console, in a file, for TensorBoard.
//
// Example
//   const auto tracker = d9d::build_tracker(config, logger);
//   const auto run = tracker->open({.name = "pretrain", .hparams = hparams});
//   run->write({.name = "loss", .step = 3, .context = {{"stage", "train"}}}, 2.5);
//   run->close(d9d::RunOutcome::kCompleted);
//
// Local, blocking; one thread a run. docs/trackers.md shows how to write one's own.
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

// What tells series of one name apart, for example {"stage": "train"}.
using TrackerContext = std::map<std::string, std::string>;

// Where a value belongs.
struct TrackerPoint {
  std::string name;       // may hold slashes: metric/accuracy
  std::int64_t step = 0;  // 0-based
  TrackerContext context = {};
};

// Counts of whole numbers: bin i covers [i, i + 1).
struct CountHistogram {
  std::vector<double> counts;
};

using TrackerValue = std::variant<double, CountHistogram>;

enum class RunOutcome { kCompleted, kFailed };

// An open run. Implementations override the private functions, and call close_in_destructor() in their destructor.
class TrackerRun {
 public:
  TrackerRun() = default;
  virtual ~TrackerRun() = default;  // closes as failed unless close() was called; never throws
  TrackerRun(const TrackerRun&) = delete;
  TrackerRun& operator=(const TrackerRun&) = delete;

  // Records one value. Steps come in ascending order. May be held back until the step changes or flush(). StateError
  // after close().
  void write(const TrackerPoint& point, const TrackerValue& value);

  // Hands everything that is held back to the system. StateError after close().
  void flush();

  // Flushes and ends the run. Idempotent: the first outcome counts.
  void close(RunOutcome outcome);

  // What a later process needs to go on with this run (RunInfo::resume_state): goes into checkpoints, after flush().
  [[nodiscard]] virtual nlohmann::ordered_json state() const;

 protected:
  void close_in_destructor() noexcept;

 private:
  virtual void do_write(const TrackerPoint& point, const TrackerValue& value) = 0;
  virtual void do_flush() {}
  virtual void do_close(RunOutcome) {}  // called once; hands over what is held back, too

  bool is_closed_ = false;
};

class Tracker {
 public:
  virtual ~Tracker() = default;

  // Starts a run, or goes on with the one that info.resume_state describes. IoError when its store cannot be opened.
  [[nodiscard]] virtual std::unique_ptr<TrackerRun> open(const RunInfo& info) const = 0;
};

// The name of a series for trackers without contexts: the context's values in the order of their keys, then the name,
// joined with slashes: train/loss.
[[nodiscard]] std::string series_name(const TrackerPoint& point);

}  // namespace d9d
