// The part of a trainer that does not depend on the types of its task: builds the job and runs it. Programs use
// Trainer<Types> (trainer.h).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "d9d/loop/run/job_builder.h"
#include "d9d/loop/run/job_sleep.h"
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

  // Collective, between steps: outside of train(), or in its handlers of train.step.post, train.step.pre, train.ready
  // and of evaluations. Gives back what the job holds under these tags, so that another program can use the devices:
  //
  //   tensor_states   all tensors move to the host or are freed: parameters, buffers, state of the optimiser, averages
  //                   of the weights, gathered parameters, gradients, CUDA graphs, inboxes of pipelines, memory that
  //                   the allocator caches
  //   comms           communicators, which all jobs of the program share, close their connections and free their memory
  //
  // Tags that sleep already are left out. sleep() and wake() keep all tensor objects and communicators, and training
  // continues as if it had not slept, bit for bit. Throws StateError on all ranks, and changes nothing, if the ranks
  // pass different tags or if one of them cannot: a step runs, or its host memory is full. trainer.timeout.init_timeout
  // applies. What stays: packs of data that were read ahead, metrics, the CUDA context.
  void sleep(const SleepTags& tags = default_sleep_tags());
  // Collective. Takes back what sleeps under these tags. If a rank's device has too little memory, throws on all ranks,
  // and the tags sleep on: free memory and call it again. While communicators sleep on, waking tensor_states is local.
  void wake(const SleepTags& tags = {SleepTag::kTensorStates, SleepTag::kComms});
  [[nodiscard]] bool is_sleeping(SleepTag tag) const { return job_.offloads->asleep().contains(tag); }
  // The parts that sleep with the job. A part of a program's own that holds device memory joins here.
  [[nodiscard]] OffloadList& offloads() const { return *job_.offloads; }

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
  const std::vector<std::shared_ptr<Module>> all_stages_;  // all of this rank that sleep
  JobSleep sleep_;
  GraphCounts graph_counts_;
};

}  // namespace d9d
