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

// Local: each rank has its own. A request of any rank ends the job on all ranks: after the running step if a handler of
// that step made the request, or after the first step of a run if it was made before the run. One case takes a step
// longer: with several ranks, a run began without handlers of kTrainStepPost, and one that subscribed during the run
// made the request. The job saves a checkpoint of its last step, and ends like one that did all its steps.
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
