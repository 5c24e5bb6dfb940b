// The part of a trainer that does not depend on the types of its task: builds the job and runs it. Programs use
// Trainer<Types> (trainer.h).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "d9d/loop/run/job_builder.h"
#include "d9d/loop/run/training_run.h"
#include "d9d/loop/step/step_graphs.h"
#include "d9d/loop/step/task_binding.h"
#include "d9d/loop/step/training_job.h"

namespace d9d {

class TrainerBase {
 public:
  TrainerBase(const TrainerBase&) = delete;
  TrainerBase& operator=(const TrainerBase&) = delete;
  ~TrainerBase();

  // Collective. Runs the remaining steps, then TrainTask::finalize().
  TrainingOutcome train();

  // Local. Ends train() on all ranks as StopRequest::request() does; handlers of events have TrainStep::stop.
  void request_stop(std::string why) { job_.stop->request(std::move(why)); }

  // Collective. Writes the model as ModelProvider::prepare_export() specifies, see write_model_state(). Called before
  // train(), it exports the model as the constructor built it or loaded it from the newest checkpoint.
  void export_to(const std::filesystem::path& directory);

  [[nodiscard]] Module& module() const { return *job_.module; }  // all stages of this rank
  // The stages of which module() consists, in increasing order.
  [[nodiscard]] const std::vector<std::shared_ptr<Module>>& stages() const { return job_.stages; }
  [[nodiscard]] const StagePlacement& placement() const { return job_.placement; }  // stages of all ranks
  [[nodiscard]] const JobSchedule& schedule() const { return job_.schedule; }
  // For handlers of train(); events before it are those of TrainTask::register_events.
  [[nodiscard]] EventBus& events() const { return *job_.events; }
  [[nodiscard]] const MetricMap& metrics() const { return job_.metrics; }
  // How many microbatches of the last train() were replayed from graphs.
  [[nodiscard]] const GraphCounts& graph_counts() const { return graph_counts_; }

 protected:
  TrainerBase(const DistContext& context, const TrainerConfig& config, const JobParts& parts,
              std::unique_ptr<TaskBinding> binding);

 private:
  TrainingOutcome train_and_finalize();
  void log_graph_counts() const;

  const JobParts parts_;
  const std::unique_ptr<TaskBinding> binding_;
  JobBuilder builder_;
  TrainingJob job_;
  GraphCounts graph_counts_;
};

}  // namespace d9d
