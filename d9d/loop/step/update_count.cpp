#include "d9d/loop/step/update_count.h"

#include "d9d/base/check.h"
#include "d9d/loop/step/gradient_manager.h"

namespace d9d {

void UpdateCount::add(const StepTotals& step, double learning_rate, std::int64_t index, const Logger* log) {
  had_no_rate_ = had_no_rate_.value_or(true) && learning_rate == 0;
  if (step.is_usable) {
    ++num_updates_;
    num_skipped_in_a_row_ = 0;
    return;
  }
  ++num_skipped_in_a_row_;
  reason_ = step.reason;
  if (log != nullptr) log->warning("step ", index, " changed nothing: ", step.reason);
}

void UpdateCount::check_skipped(std::optional<std::int64_t> max_in_a_row) const {
  D9D_CHECK(!max_in_a_row || num_skipped_in_a_row_ < *max_in_a_row, StateError,
            "[loop::training] expected a step that changes the model within ", *max_in_a_row,
            " steps (trainer.gradient_clipping.max_skipped_in_a_row), got none. The last: ", reason_,
            ". Continue from a checkpoint with other data or a lower learning rate.");
}

void UpdateCount::check(std::int64_t total_steps, const Logger* log) const {
  D9D_CHECK(num_updates_ > 0, StateError, "[loop::training] expected a step that changes the model, got none in ",
            total_steps, " steps: ", reason_.empty() ? "all were done before this run" : reason_,
            ". Nothing is exported. Correct the data, or the weights that the job begins with, and "
            "begin in another ",
            "trainer.checkpointing.save_dir.");
  if (log != nullptr && had_no_rate_.value_or(false)) {
    log->warning("the learning rate was 0 in every step: the model is as it began");
  }
}

}  // namespace d9d
