// The results of a metric of several classes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "d9d/metrics/classification/statistics.h"

namespace d9d::detail {

// Returns Metric::result_names(): the classes under kPerClass, otherwise the metric itself. class_names: empty for
// numbers. Throws StateError for names that are not as many as classes.
[[nodiscard]] std::vector<std::string> result_names(std::int64_t num_classes, Average average,
                                                    const std::vector<std::string>& class_names);

}  // namespace d9d::detail
