// Explains a choice in text: the candidates, the best one, and what would balance the stages.
#pragma once

#include <string>

#include "d9d/pipelining/simulator/choose_schedule.h"

namespace d9d::detail {

[[nodiscard]] std::string explain(const ScheduleRequest& request, const ScheduleChoice& choice);

}  // namespace d9d::detail
