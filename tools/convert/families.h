// The mappers of the families that d9d_convert knows, chosen by config.json and by the names of a folder.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "d9d/blocks/head/head_config.h"
#include "d9d/model_state/mapper/state_mapper.h"

#include "tools/convert/options.h"

namespace d9d::convert {

// `shape_of`: of a tensor of the folder. `head`: of the model; none: as the names say. Throws ConfigError for a family and for features that this library lacks,
// UsageError for flags that do not go together.
[[nodiscard]] StateMapper family_mapper(
    const Options& options, const nlohmann::json& config, const std::vector<std::string>& names,
    const std::function<std::vector<std::int64_t>(const std::string& name)>& shape_of,
    const std::optional<HeadConfig>& head);

}  // namespace d9d::convert
