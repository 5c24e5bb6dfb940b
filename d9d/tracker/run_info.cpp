#include "d9d/tracker/run_info.h"

namespace d9d {

nlohmann::ordered_json state_of_last_step(std::int64_t last_step) { return {{"last_step", last_step}}; }

std::optional<std::int64_t> resumed_last_step(const RunInfo& info) {
  if (!info.resume_state.is_object()) return std::nullopt;
  const auto entry = info.resume_state.find("last_step");
  if (entry == info.resume_state.end() || !entry->is_number_integer()) return std::nullopt;
  return entry->get<std::int64_t>();
}

}  // namespace d9d
