// The part of an inference job that does not depend on the types of its task. Programs use Inference<Types>
// (inference.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/io/folder_lock.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/run/job_sleep.h"
#include "d9d/loop/run/stop_decision.h"
#include "d9d/loop/step/even_packs.h"
#include "d9d/loop/step/inference_binding.h"
#include "d9d/loop/task/event_bus.h"
#include "d9d/loop/task/job_schedule.h"
#include "d9d/loop/task/providers.h"
#include "d9d/loop/task/stop_request.h"
#include "d9d/pipelining/executor/pipeline_executor.h"
#include "d9d/pipelining/program/stage_placement.h"

namespace d9d {

class RunTimeouts;

class InferenceBase {
 public:
  InferenceBase(const InferenceBase&) = delete;
  InferenceBase& operator=(const InferenceBase&) = delete;
  ~InferenceBase();

  // Collective. Runs the packs that are left, then InferenceTask::finalize(). The outcomes are those of training: after
  // a signal or a StopRequest the running pack is processed and the position saved.
  TrainingOutcome infer();

  // Collective, outside of infer(). Do what TrainerBase::sleep() and wake() say, for the model and the communicators.
  void sleep(const SleepTags& tags = default_sleep_tags());
  void wake(const SleepTags& tags = {SleepTag::kTensorStates, SleepTag::kComms});
  [[nodiscard]] bool is_sleeping(SleepTag tag) const { return offloads_.asleep().contains(tag); }
  [[nodiscard]] OffloadList& offloads() { return offloads_; }

  // Local. Ends infer() on all ranks as StopRequest::request() does.
  void request_stop(std::string why) { stop_.request(std::move(why)); }
  [[nodiscard]] const std::vector<std::shared_ptr<Module>>& stages() const { return modules_; }
  [[nodiscard]] const JobSchedule& schedule() const { return schedule_; }  // current_step(): packs that are processed
  [[nodiscard]] EventBus& events() const { return *events_; }

 protected:
  // Parts without the types of the task. Borrowed.
  struct Parts {
    AnyTask& task;
    AnyModelProvider& model;
    std::optional<StagePlacement> placement;
  };
  InferenceBase(const DistContext& context, const InferenceConfig& config, const Parts& parts,
                std::unique_ptr<InferenceBinding> binding);

 private:
  void build_stages();
  void load_position();
  void announce() const;  // collective
  void run_packs(EvenPacks& packs, StopDecision& stop);
  void save() const;
  void save_if_due(const RunTimeouts& timeouts, bool is_last);

  const DistContext& context_;
  const InferenceConfig config_;
  const Parts parts_;
  const std::unique_ptr<InferenceBinding> binding_;
  StopRequest stop_;
  const std::unique_ptr<EventBus> events_ = std::make_unique<EventBus>();
  const StagePlacement placement_;
  std::unique_ptr<PackReader> packs_;
  JobSchedule schedule_;
  std::unique_ptr<FolderLock> saves_lock_;
  std::vector<std::shared_ptr<AnyModelStage>> stages_;
  std::vector<std::shared_ptr<Module>> modules_;  // of stages_
  RandomClockPtr clock_;
  std::unique_ptr<PipelineExecutor> executor_;
  OffloadList offloads_;
  JobSleep sleep_{context_, offloads_, modules_, config_.timeout};  // the constructor's body adds the parts
  OffloadHooks executor_asleep_{[this] { executor_->close(); }};
  OffloadList::Membership executor_membership_;
  std::int64_t saved_step_ = -1;  // of the last position that was saved
};

}  // namespace d9d
