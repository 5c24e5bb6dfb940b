#include "d9d/tracker/config.h"

#include "d9d/base/config/describe.h"

namespace d9d {

template const ValueType& json_type<TrackerConfig>();

}  // namespace d9d
