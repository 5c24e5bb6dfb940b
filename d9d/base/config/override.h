// Changes to a configuration from the command line.
//
// Example
//   apply_override(json, "trainer.schedule.total_steps=100");
//   apply_override(json, "lr_scheduler.scheduler.phases.0.steps=5");   // an element of a list
#pragma once

#include <string_view>

#include "d9d/base/config/json_text.h"

namespace d9d {

// `assignment` is key.path=value. The value is parsed as JSON; if it is not JSON, it is a string. Missing keys are
// created; parsing later checks whether they are known. Throws UsageError if `assignment` does not have this form,
// ConfigError if the path leads through a value that has no such keys.
void apply_override(Json& config, std::string_view assignment);

}  // namespace d9d
