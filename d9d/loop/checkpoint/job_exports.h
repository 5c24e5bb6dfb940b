// Exports the model of a training run every so many steps, as trainer.exports says: that of step n, the number of steps
// done, to <folder>/step-<n>.
//
// Example
//   JobExports exports(job, provider);
//   if (exports.is_missing()) exports.run();           // a job that was killed before it had exported its last step
//   while (...) {
//     ...                                              // a step, JobSchedule::advance(), evaluations, save
//     if (exports.is_due()) exports.run();
//   }
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "d9d/base/io/folder_lock.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/loop/task/providers.h"

namespace d9d {

class JobExports {
 public:
  // Collective. Arguments are borrowed. Locks the folder, and detects early what would make a later export fail: throws
  // IoError if the folder cannot be written, if another job has locked it, or if something else has the name of a later
  // export; ConfigError as check_export_place().
  JobExports(const TrainingJob& job, AnyModelProvider& model);

  // Local, the same on all ranks. Returns whether an export is due after the steps that are done.
  [[nodiscard]] bool is_due() const;
  // Collective. Returns whether is_due() and no export of this step is on disk.
  [[nodiscard]] bool is_missing() const;
  // Collective. Exports the model, see export_model(), and replaces an earlier export of this step.
  void run();

 private:
  [[nodiscard]] std::filesystem::path target(std::int64_t step) const;

  const TrainingJob& job_;
  AnyModelProvider& model_;
  std::unique_ptr<FolderLock> lock_;  // null except on the main process
};

}  // namespace d9d
