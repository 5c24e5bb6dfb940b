// The part of a trainer that does not depend on the types of its task: builds the job and runs it. Programs use
// Trainer<Types> (trainer.h).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "d9d/loop/checkpoint/job_checkpoints.h"
#include "d9d/loop/run/training_run.h"
#include "d9d/loop/step/microbatch_graphs.h"
#include "d9d/loop/step/task_binding.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/loop/task/providers.h"
#include "d9d/loop/task/task.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d {

class TrainerBase {
 public:
  TrainerBase(const TrainerBase&) = delete;
  TrainerBase& operator=(const TrainerBase&) = delete;
  ~TrainerBase();

  // Runs the remaining steps, then the task's finalize.
  TrainingOutcome train();

  // Collective. Writes the model as ModelProvider::prepare_export says, see write_model_state(). Before train() that is
  // the model of the newest checkpoint, if there is one.
  void export_to(const std::filesystem::path& directory);

  [[nodiscard]] Module& module() const { return *job_.module; }  // what this rank has of the model
  // The stages of which it consists, in increasing order, and where those of all ranks lie.
  [[nodiscard]] const std::vector<std::shared_ptr<Module>>& stages() const { return job_.stages; }
  [[nodiscard]] const StagePlacement& placement() const { return job_.placement; }
  [[nodiscard]] const JobSchedule& schedule() const { return job_.schedule; }
  [[nodiscard]] const MetricMap& metrics() const { return job_.metrics; }
  // How many microbatches of the last train() were replayed from graphs.
  [[nodiscard]] const GraphCounts& graph_counts() const { return graph_counts_; }

 protected:
  // TrainerParts without the types of the task.
  struct Parts {
    AnyTask& task;
    AnyModelProvider& model;
    OptimizerProvider& optimizer;
    LearningRateSchedulerProvider& lr_scheduler;
    std::shared_ptr<const Tracker> tracker;
    std::optional<PipelineSchedule> pipeline_schedule;
  };

  TrainerBase(const DistContext& context, const TrainerConfig& config, const Parts& parts,
              std::unique_ptr<TaskBinding> binding);

 private:
  [[nodiscard]] TrainingJob build_job(const DistContext& context, const TrainerConfig& given);
  [[nodiscard]] std::vector<std::shared_ptr<AnyModelStage>> build_stages(const DistContext& context,
                                                                         const TrainerConfig& config,
                                                                         const StagePlacement& placement);
  [[nodiscard]] nlohmann::json hparams() const;  // of task and model
  void log_graph_counts() const;

  const Parts parts_;
  const std::unique_ptr<TaskBinding> binding_;
  std::jthread warm_up_;
  AnyPackStream* stream_ = nullptr;         // the binding's
  std::unique_ptr<FolderLock> saves_lock_;  // of the main process
  std::optional<SavedCheckpoint> saved_;    // from which the job continues, until it has done so
  TrainingJob job_;
  GraphCounts graph_counts_;
};

}  // namespace d9d
