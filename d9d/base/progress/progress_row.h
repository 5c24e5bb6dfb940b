// The text of a progress row, as a pure function of its contents.
//
// Example
//   const d9d::ProgressRow row{.label = "load", .done = 45, .total = 300, .seconds_left = 42};
//   d9d::row_text(row, 60);  // "load  45/300 [===>                      ]  15%  eta 0:42"
//   d9d::line_text(row);     // "load  45/300  15%  eta 0:42"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace d9d {

struct ProgressRow {
  std::string label = {};
  std::int64_t done = 0;
  std::int64_t total = 1;                // > 0
  std::vector<std::string> fields = {};  // shown in order after the percentage
  std::optional<double> seconds_left = std::nullopt;
};

// At most `columns` characters. If the width does not suffice, fields after the fourth are left out first, then the
// bar, then the other fields from the last to the first, then the time left.
[[nodiscard]] std::string row_text(const ProgressRow& row, int columns);

// The row without the bar, of any length.
[[nodiscard]] std::string line_text(const ProgressRow& row);

// Formats seconds as 0:42, 12:05 or 3:04:05.
[[nodiscard]] std::string duration_text(double seconds);

// Formats with three significant digits and k, M, G or T: 987, 12.3k, 1.50M.
[[nodiscard]] std::string short_number(double value);

}  // namespace d9d
