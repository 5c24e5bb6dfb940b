// Rejects, by name, settings that are valid in a configuration but that this version does not support. None is ignored.
//
// Example
//   refuse_unsupported(config.trainer);
//   // [config] trainer.logging.tracker.provider = "mlflow": this tracker is not built in this version. Use ...
#pragma once

#include "d9d/loop/config/trainer_config.h"

namespace d9d {

// Throws ConfigError for the first setting that is not supported. Messages name keys below `trainer`. (Data sources are
// rejected where they are read: data/build/token_stream.h.)
void refuse_unsupported(const TrainerConfig& trainer);

}  // namespace d9d
