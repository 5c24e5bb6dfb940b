// Event files that `tensorboard --logdir <log_dir>` shows: scalars, histograms of counts, and the text "run" with the
// description and a table of the hyper-parameters.
//
// Example
//   const auto run = d9d::TensorboardTracker("runs/a").open({.name = "pretrain", .hparams = hparams});
//   run->write({.name = "loss", .step = 3, .context = {{"stage", "train"}}}, 2.5);  // series "train/loss"
//
// The folder is used as it is: one folder, one run. Each process adds a file; readers then drop the values of steps
// that it repeats after a resume, and all values of an earlier run where a fresh one starts. Values are single
// precision.
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
