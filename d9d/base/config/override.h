// Changes to a configuration from the command line.
//
// Example
//   apply_override(json, "trainer.schedule.total_steps=100");
//   apply_override(json, "lr_scheduler.scheduler.phases.0.steps=5");   // an element of a list
#pragma once

#include <string_view>

#include "d9d/base/config/json_text.h"

namespace d9d {

// `assignment` is key.path=value. The value is JSON, or else a string as it stands. Keys that are missing are created;
// whether they are known is for parsing to say. Throws UsageError when it is no assignment, ConfigError when the path
// leads through a value that has no such keys.
void apply_override(Json& config, std::string_view assignment);

}  // namespace d9d
