// The steps of a training job: what happens in a step, and in which order.
//
//   MicrobatchRunner::fetch()       a pack of microbatches, read ahead
//   MicrobatchRunner::run()         train_pack.h: in the order of the schedule, for each microbatch
//     TrainingStage::forward()        model, TrainTask::compute_loss, loss * weight
//     StageGraph::backward()          autograd; reductions of gradients run meanwhile
//   GradientManager::apply()        sums over ranks, norm, clipping, optimiser; also the ranks' votes (rank_votes.h)
//   StepLog::write()                tracker
//   Module::finish_step()           balance of experts, counters
//   LearningRateScheduler::step(), GradientManager::reset(), JobSchedule::advance(), JobSaves::save()
#pragma once

#include "d9d/loop/step/microbatch_runner.h"
#include "d9d/loop/step/training_job.h"

namespace d9d {

enum class TrainingOutcome {
  kFinished,     // all steps were done
  kInterrupted,  // Ctrl-C or SIGTERM: the running step was completed and logged
};

// Runs the remaining steps.
[[nodiscard]] TrainingOutcome run_training(TrainingJob& job, MicrobatchRunner& packs);

}  // namespace d9d
