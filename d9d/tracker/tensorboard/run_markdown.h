// The text that TensorBoard shows about a run.
//
// Example
//   d9d::run_markdown({.name = "a", .hparams = {{"lr", 0.1}}});  // "# a\n\n| hyper-parameter | value |..."
#pragma once

#include <string>

#include "d9d/tracker/run_info.h"

namespace d9d {

// Name, description and a table of the hyper-parameters; nested keys are joined with slashes, null is kept.
[[nodiscard]] std::string run_markdown(const RunInfo& info);

}  // namespace d9d
