// Values of trackers as JSON.
//
// Example
//   d9d::value_json(2.5);                         // 2.5
//   d9d::value_json(d9d::CountHistogram{{3, 0}});  // [3,0]
#pragma once

#include <nlohmann/json.hpp>

#include "d9d/tracker/tracker.h"

namespace d9d {

// A number with the shortest digits that parse to the same double; NaN and infinities, which JSON has not, as "NaN",
// "Infinity" and "-Infinity"; the counts of a histogram as a list; a text as {"text": ...},
// a picture as {"svg": ...}.
[[nodiscard]] nlohmann::ordered_json value_json(const TrackerValue& value);

}  // namespace d9d
