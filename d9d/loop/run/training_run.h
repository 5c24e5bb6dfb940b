// Runs the steps of a training job. A step calls, in this order:
//
//   MicrobatchRunner::fetch()       a pack of microbatches, which a thread has read ahead
//   MicrobatchRunner::run()         forwards of the reference, if the task has one (reference_pass.h), then for each
//                                   microbatch, in the order of the pipeline schedule (train_pack.h):
//     TrainingStage::forward()        model, TrainTask::compute_loss, loss * weight
//     StageGraph::backward()          autograd; sums of gradients over ranks begin while it runs
//   GradientManager::apply()        sums over ranks, norm, clipping, optimiser; also the ranks' votes (rank_votes.h)
//   Ema::update()                   if the step changed the model
//   StepLog::write()                values for the trackers
//   Module::finish_step()           end-of-step work of modules, such as balancing experts
//   LearningRateScheduler::step(), GradientManager::reset(), JobSchedule::advance()
//   Evaluations::run_due()          forwards over the packs of evaluation sets
//   JobSaves::save()
//   JobExports::run()
#pragma once

#include "d9d/loop/checkpoint/job_exports.h"
#include "d9d/loop/run/evaluations.h"
#include "d9d/loop/step/microbatch_runner.h"
#include "d9d/loop/step/training_job.h"

namespace d9d {

enum class TrainingOutcome {
  kFinished,     // all steps were done
  kStopped,      // by the program (StopRequest): the running step was completed, logged and saved
  kInterrupted,  // by Ctrl-C or SIGTERM: likewise; launch() returns 128 + the number of the signal
};

// Collective. Runs the remaining steps.
[[nodiscard]] TrainingOutcome run_training(TrainingJob& job, MicrobatchRunner& packs, Evaluations& evaluations,
                                           JobExports& exports);

}  // namespace d9d
