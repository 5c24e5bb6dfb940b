#include "d9d/loop/checkpoint/job_exports.h"

#include <chrono>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/io/numbered_folder.h"
#include "d9d/core/collectives/agreed.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/device/named_range.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checkpoint/export_model.h"
#include "d9d/model_state/io/huggingface_directory.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

}  // namespace

JobExports::JobExports(const TrainingJob& job, AnyModelProvider& model) : job_(job), model_(model) {
  if (!job.config.exports) return;
  const auto files = model.prepare_export(*job.module).files;
  const std::int64_t step = job.schedule.current_step();
  TrainerConfig others = job.config;
  others.exports.reset();
  on_first_rank(job.context.mesh(MeshDomain::kBatch), [&] {
    with_error_place("trainer.exports.folder", [&] {
      const fs::path& folder = job.config.exports->folder;
      check_export_place(folder, others);
      check_huggingface_target(target(step + 1), files);  // also makes the folder
      lock_ = std::make_unique<FolderLock>(folder);
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        if (number_of_folder(entry.path(), kPrefix).value_or(0) > step) check_huggingface_target(entry.path(), files);
      }
    });
  });
}

bool JobExports::is_due() const {
  const auto& config = job_.config.exports;
  return config && job_.schedule.current_step() > 0 &&
         job_.schedule.should_do_action(config->period_steps, {.after_advance = true});
}

bool JobExports::is_missing() const {
  if (!is_due()) return false;
  std::error_code ignored;  // the first rank's answer counts
  const nlohmann::json is_there = fs::exists(target(job_.schedule.current_step()), ignored);
  return !all_gather_object(is_there, job_.context.mesh(MeshDomain::kBatch)).front().get<bool>();
}

void JobExports::run() {
  const NamedRange range("export");
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t step = job_.schedule.current_step();
  job_.offloads->check_awake("export its model");
  export_model(job_, model_.prepare_export(*job_.module), target(step));
  if (!job_.context.is_main_process()) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  job_.context.log().info("exported step ", step, " to ", target(step).string(), " (", seconds, " s)");
}

fs::path JobExports::target(std::int64_t step) const { return job_.config.exports->folder / cat(kPrefix, step); }

}  // namespace d9d
