// Ends a job before its last step, by a decision of the program: an early stop, a limit of time.
//
// Example
//   events.subscribe(kTrainStepPost, [](const FinishedStep& step) {
//     if (step.loss < 0.1) step.stop.request("the loss is below 0.1");
//   });
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace d9d {

// Local: each rank has its own. A request of any rank ends the job on all ranks: after the running step, whose handlers
// made it, or after the first step of a run if it was made before. With several ranks, a handler of kTrainStepPost that
// subscribes during a run that began without any ends it one step later. The job saves its last step, and ends as a
// finished one.
class StopRequest {
 public:
  // why: for the log, such as "the loss is below 0.1". Of several requests the first counts.
  void request(std::string why) {
    if (!why_) why_ = std::move(why);
  }
  [[nodiscard]] const std::optional<std::string>& why() const { return why_; }
  void reset() { why_.reset(); }

 private:
  std::optional<std::string> why_;
};

}  // namespace d9d
