// The logged values that measure a run, and so differ between two runs of one job.
//
// Example
//   for (nlohmann::json& line : lines) drop_measured(line);
//   EXPECT_EQ(lines, expected);
#pragma once

#include <set>
#include <string>

#include <nlohmann/json.hpp>

namespace d9d::test {

inline bool is_measured(const std::string& series) {
  static const std::set<std::string> kMeasured = {"time", "step_seconds", "data_seconds",     "tokens_per_second",
                                                  "mfu",  "host_bytes",   "device_peak_bytes"};
  return kMeasured.contains(series);
}

inline void drop_measured(nlohmann::json& line) {
  std::erase_if(line.get_ref<nlohmann::json::object_t&>(), [](const auto& each) { return is_measured(each.first); });
}

}  // namespace d9d::test
