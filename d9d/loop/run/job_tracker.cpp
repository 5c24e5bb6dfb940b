#include "d9d/loop/run/job_tracker.h"

#include <utility>
#include <vector>

#include "d9d/tracker/guarded_tracker.h"
#include "d9d/tracker/multi_tracker.h"
#include "d9d/tracker/null_tracker.h"

namespace d9d {

std::shared_ptr<const Tracker> job_tracker(const DistContext& context, const LoggingConfig& config,
                                           const TrackerFactories& own, const std::shared_ptr<const Tracker>& beside) {
  if (!context.is_main_process()) return std::make_shared<NullTracker>();
  std::shared_ptr<const Tracker> configured = build_tracker(config.tracker, own);
  if (beside == nullptr) return configured;
  return std::make_shared<MultiTracker>(std::vector<std::shared_ptr<const Tracker>>{
      std::move(configured), std::make_shared<GuardedTracker>(beside, "of the program")});
}

}  // namespace d9d
