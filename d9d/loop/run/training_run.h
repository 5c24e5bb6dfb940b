// The steps of a training job: what happens in a step, and in which order.
//
//   fetch a pack -> forward, loss, backward a microbatch at a time -> divide, norm, clip, optimiser -> log ->
//   after-step actions of the model -> learning rate -> clear gradients -> current_step + 1
#pragma once

#include "d9d/loop/step/pack_runner.h"
#include "d9d/loop/step/training_job.h"

namespace d9d {

enum class TrainingOutcome {
  kFinished,     // all steps were done
  kInterrupted,  // Ctrl-C or SIGTERM: the running step was completed and logged
};

// Runs the remaining steps.
[[nodiscard]] TrainingOutcome run_training(TrainingJob& job, PackRunner& packs);

}  // namespace d9d
