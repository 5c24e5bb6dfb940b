#include "d9d/lr_scheduler/config.h"

#include "d9d/base/config/describe.h"

namespace d9d {

template const ValueType& json_type<LRSchedulerConfig>();

}  // namespace d9d
