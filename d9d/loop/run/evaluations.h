// Evaluates a training job on its evaluation sets, between steps: the trainer's own stages run forwards without
// gradients over packs of a stream of the set's own, and nothing of it remains in training.
//
// Example
//   Evaluations evaluations(job, task, provider, packs, training_packs, /*reference=*/nullptr);
//   ...                                                                       // a step, JobSchedule::advance()
//   const EvaluationsOfStep done = evaluations.run_due(gradients, log, interrupt);
//   if (done.is_best) ...                                                     // save
//
// The loss of a set is sum(loss_i * weight_i) / sum(weight_i) over all its microbatches, as that of a step. Ranks that
// have fewer microbatches than others compute some twice, which count once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/base/interrupt.h"
#include "d9d/base/io/folder_lock.h"
#include "d9d/loop/run/step_log.h"
#include "d9d/loop/step/evaluation_stage.h"
#include "d9d/loop/step/even_packs.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/loop/step/pack_reader.h"
#include "d9d/loop/step/reference_pass.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/loop/task/providers.h"
#include "d9d/loop/task/task.h"
#include "d9d/pipelining/executor/pipeline_executor.h"

namespace d9d {

// The evaluations that one call of run_due() has made.
struct EvaluationsOfStep {
  bool has_run = false;  // at least one
  bool is_best = false;  // at least one is the best of its set so far
  int signal = 0;        // SIGINT or SIGTERM, which ended the evaluation of a set; 0: none
};

class Evaluations {
 public:
  // Collective. All arguments are borrowed. training: gives a microbatch to a rank that has none of an evaluation set.
  // reference: of the task; null: it has none.
  // Throws StateError if a metric of TrainTask::create_metrics() is one that training uses, ConfigError if
  // trainer.evaluation.<set>.best names no metric.
  Evaluations(TrainingJob& job, AnyTask& task, AnyModelProvider& model, const EvaluationPacks& packs,
              PackReader& training, ReferencePass* reference);
  Evaluations(const Evaluations&) = delete;
  Evaluations& operator=(const Evaluations&) = delete;

  // Whether an evaluation is due after the steps that are done; the same on all ranks.
  [[nodiscard]] bool are_due() const;
  // Collective. Evaluates on each set that is due, logs its values, triggers its events, and exports the best model. A
  // signal on any rank ends it after the pack that is running; the set remains due.
  [[nodiscard]] EvaluationsOfStep run_due(GradientManager& gradients, StepLog& log, const InterruptScope& interrupt);

 private:
  struct Set {
    const EvaluationConfig& config;
    EvaluationHistory& history;
    std::unique_ptr<EvenPacks> packs = nullptr;
    MetricMap metrics = {};
    std::unique_ptr<FolderLock> export_lock = nullptr;  // of best.export_to, on the main process
  };

  [[nodiscard]] bool is_due(const Set& set) const;
  // Evaluates with the weights that trainer.ema.evaluate names, and adds their values to `found`. Returns the signal
  // that ended the evaluation, otherwise 0.
  int evaluate(const std::string& name, Set& set, GradientManager& gradients, const InterruptScope& interrupt,
               std::map<std::string, double>& found);
  // Runs the set once with the weights that the stages have. Returns as evaluate().
  int run_set(const std::string& name, Set& set, GradientManager& gradients, const InterruptScope& interrupt);
  void run_pack(const Set& set, ForwardPack& pack);
  [[nodiscard]] std::map<std::string, double> values(const Set& set);
  [[nodiscard]] bool takes_best(const std::string& name, Set& set, const std::map<std::string, double>& values);

  TrainingJob& job_;
  AnyModelProvider& model_;
  ReferencePass* const reference_;
  std::optional<PipelineExecutor> executor_;  // set if there are sets
  const SideStream side_;
  std::map<std::string, Set> sets_;
  MetricMap losses_;  // of the running evaluation, as EvaluationParts::losses
  OffloadHooks asleep_{[this] {
    if (executor_) executor_->close();
  }};
  const OffloadList::Membership membership_ = job_.offloads->add(asleep_, {SleepTag::kTensorStates, SleepTag::kComms});
};

}  // namespace d9d
