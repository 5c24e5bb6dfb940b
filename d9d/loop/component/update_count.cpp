#include "d9d/loop/component/update_count.h"

#include "d9d/base/check.h"
#include "d9d/loop/component/gradient_manager.h"

namespace d9d {

void UpdateCount::add(const StepGradients& step, double learning_rate, std::int64_t index, const Logger* log) {
  if (step.is_usable) {
    if (learning_rate > 0) ++num_updates_;
    if (learning_rate == 0) reason_ = "the learning rate was 0";
    return;
  }
  reason_ = step.reason;
  if (log != nullptr) log->warning("step ", index, " changed nothing: ", step.reason);
}

void UpdateCount::check(std::int64_t total_steps) const {
  D9D_CHECK(num_updates_ > 0, StateError, "[loop::training] expected a step that changes the model, got none in ",
            total_steps, " steps: ", reason_.empty() ? "they were done before this start" : reason_,
            ". Nothing is exported. Correct the data, the learning rate, or the weights that the job begins with, and "
            "begin in another ",
            "trainer.checkpointing.save_dir.");
}

}  // namespace d9d
