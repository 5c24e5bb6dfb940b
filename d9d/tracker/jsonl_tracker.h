// A text file with one JSON object for each step (docs/trackers.md describes the format).
//
// Example
//   const auto run = d9d::JsonlTracker("run/metrics.jsonl").open({.name = "pretrain"});
//   run->write({.name = "loss", .step = 3, .context = {{"stage", "train"}}}, 2.5);
//   run->write({.name = "lr", .step = 3, .context = {{"stage", "train"}}}, 3e-4);
//   run->flush();  // {"step":3,"loss":2.5,"lr":0.0003}
//
// A fresh run starts a new file and renames an existing one to <path>.previous. A resumed run deletes the lines of
// steps after its checkpoint and appends, so that each step occurs once. A line is written when the step changes, with
// one write. While a run is open the file is its own, by <path>.lock: another job is refused with IoError.
#pragma once

#include <filesystem>
#include <memory>

#include "d9d/tracker/tracker.h"

namespace d9d {

class JsonlTracker final : public Tracker {
 public:
  explicit JsonlTracker(std::filesystem::path path);
  [[nodiscard]] std::unique_ptr<TrackerRun> open(const RunInfo& info) const override;

 private:
  std::filesystem::path path_;
};

}  // namespace d9d
