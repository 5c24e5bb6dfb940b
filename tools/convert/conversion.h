// What d9d_convert does to a folder: a mapper, and the files beside the weights.
#pragma once

#include "d9d/model_state/model_export.h"

#include "tools/convert/options.h"
#include "tools/convert/source.h"

namespace d9d::convert {

// `options`, `source`: of open_source(). Reads config.json where a family must be known, and headers. Throws ConfigError for a family or a format that this
// library lacks, and UsageError for flags that do not go together.
[[nodiscard]] ModelExport plan_conversion(const Options& options, const Source& source);

}  // namespace d9d::convert
