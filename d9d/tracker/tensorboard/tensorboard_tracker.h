// Event files that `tensorboard --logdir <log_dir>` shows: scalars, histograms of counts, and the text "run" with the
// description and a table of the hyper-parameters.
//
// Example
//   const auto run = d9d::TensorboardTracker("runs/a").open({.name = "pretrain", .hparams = hparams});
//   run->write({.name = "loss", .step = 3, .context = {{"stage", "train"}}}, 2.5);  // series "train/loss"
//
// The folder is used directly: one folder holds one run, and while it is open another job is refused with IoError. Each
// process adds a file. After a resume, readers ignore the
// old values of steps that the new process repeats; after a fresh start they ignore all values of the earlier run.
// Values have single precision.
#pragma once

#include <filesystem>
#include <memory>

#include "d9d/tracker/tracker.h"

namespace d9d {

class TensorboardTracker final : public Tracker {
 public:
  explicit TensorboardTracker(std::filesystem::path log_dir);
  [[nodiscard]] std::unique_ptr<TrackerRun> open(const RunInfo& info) const override;

 private:
  std::filesystem::path log_dir_;
};

}  // namespace d9d
