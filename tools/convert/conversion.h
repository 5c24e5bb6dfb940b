// What d9d_convert does to a folder: a mapper, and the files beside the weights.
#pragma once

#include <map>
#include <string>

#include "d9d/model_state/mapper/state_mapper.h"

#include "tools/convert/options.h"
#include "tools/convert/source.h"

namespace d9d::convert {

struct Conversion {
  StateMapper mapper;
  std::map<std::string, std::string> files;
};

// `options`, `source`: of open_source(). Reads config.json where a family must be known, and headers. Throws ConfigError for a family or a format that this
// library lacks, and UsageError for flags that do not go together.
[[nodiscard]] Conversion plan_conversion(const Options& options, const Source& source);

}  // namespace d9d::convert
