// Keeps the random numbers of training: after forwards within this scope, it draws the same ones as without them.
//
// Example
//   const RandomNumbersOfTraining numbers(job);
//   ...                                           // an evaluation
#pragma once

#include "d9d/core/rng/default_generators.h"
#include "d9d/loop/step/training_job.h"

namespace d9d {

class RandomNumbersOfTraining {
 public:
  // job: borrowed.
  explicit RandomNumbersOfTraining(const TrainingJob& job)
      : clock_(*job.clock), microbatch_(clock_.microbatch), generators_(job.context.device()) {}
  ~RandomNumbersOfTraining() {
    clock_.microbatch = microbatch_;
    generators_.restore();
  }
  RandomNumbersOfTraining(const RandomNumbersOfTraining&) = delete;
  RandomNumbersOfTraining& operator=(const RandomNumbersOfTraining&) = delete;

 private:
  RandomClock& clock_;
  const RandomMicrobatch microbatch_;
  const DefaultGenerators generators_;
};

}  // namespace d9d
