// Compares the device memory that the first step of a run takes with trainer.memory_budget.
//
// Example
//   BudgetCheck budget(job);
//   budget.begin_step();
//   ...                                              // a step
//   budget.end_step();                               // warns if the step took more
#pragma once

#include "d9d/loop/step/training_job.h"

namespace d9d {

class BudgetCheck {
 public:
  // `job` is borrowed.
  explicit BudgetCheck(const TrainingJob& job);
  // Local, called around each step; do nothing after the first, without a budget, and on CPUs.
  void begin_step();
  void end_step();

 private:
  const TrainingJob& job_;
  bool is_due_;
};

}  // namespace d9d
