// The tracker of a training job.
//
// Example
//   const std::shared_ptr<const Tracker> tracker = job_tracker(context, config.logging, own, beside);
#pragma once

#include <memory>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/tracker/build_tracker.h"

namespace d9d {

// Local. On the main process the tracker of trainer.logging.tracker, which may be one of `own`, and `beside` it, unless
// that is null; a null tracker on other ranks. Starts the process of Aim, W&B or MLflow.
[[nodiscard]] std::shared_ptr<const Tracker> job_tracker(const DistContext& context, const LoggingConfig& config,
                                                         const TrackerFactories& own,
                                                         const std::shared_ptr<const Tracker>& beside);

}  // namespace d9d
