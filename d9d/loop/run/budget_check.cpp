#include "d9d/loop/run/budget_check.h"

#include "d9d/base/config/byte_size.h"
#include "d9d/core/device/allocated_bytes.h"

namespace d9d {

BudgetCheck::BudgetCheck(const TrainingJob& job)
    : job_(job), is_due_(job.device_budget.has_value() && !job.context.device().is_cpu()) {}

void BudgetCheck::begin_step() {
  if (is_due_) AllocatedBytes(job_.context.device()).reset_peak();
}

void BudgetCheck::end_step() {
  if (!is_due_) return;
  is_due_ = false;
  const auto bytes = AllocatedBytes(job_.context.device()).peak(), budget = *job_.device_budget;
  if (bytes <= budget) return;
  job_.context.log().warning("step ", job_.schedule.current_step(), " took ", byte_size_text(bytes),
                             " of the device, more than trainer.memory_budget.device, ", byte_size_text(budget),
                             ": lower the budget if memory runs out");
}

}  // namespace d9d
