#include "d9d/base/progress/progress_row.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>

namespace d9d {
namespace {

constexpr int kMaxBarCells = 26;
constexpr int kMinBarCells = 5;
constexpr std::size_t kFieldsBeforeBar = 4;  // that are more important than the bar

template <class... Numbers>
std::string format(const char* pattern, Numbers... numbers) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, numbers...);
  return text.data();
}

std::string padded_left(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string position_text(const ProgressRow& row) {
  const std::string total = std::to_string(row.total);
  return row.label + ' ' + padded_left(std::to_string(row.done), total.size()) + '/' + total;
}

std::string percent_text(const ProgressRow& row) {
  return padded_left(std::to_string(100 * row.done / row.total) + '%', 4);
}

std::string bar_text(const ProgressRow& row, int cells) {
  const auto filled = static_cast<std::size_t>(std::clamp<std::int64_t>(cells * row.done / row.total, 0, cells));
  std::string bar(static_cast<std::size_t>(cells), ' ');
  std::fill_n(bar.begin(), filled, '=');
  if (filled < bar.size()) bar[filled] = '>';
  return '[' + bar + ']';
}

std::string tail_text(const ProgressRow& row, std::size_t num_fields, bool with_time_left) {
  std::string tail;
  for (std::size_t i = 0; i < num_fields; ++i) tail += "  " + row.fields[i];
  if (with_time_left && row.seconds_left) tail += "  eta " + duration_text(*row.seconds_left);
  return tail;
}

}  // namespace

std::string row_text(const ProgressRow& row, int columns) {
  const auto width = static_cast<std::size_t>(std::max(columns, 0));
  const std::string position = position_text(row) + ' ';
  const std::string percent = percent_text(row);
  std::size_t num_fields = row.fields.size();
  std::string tail = tail_text(row, num_fields, true);
  const auto cells = [&] {
    return std::min(kMaxBarCells, columns - static_cast<int>((position + "[] " + percent + tail).size()));
  };
  while (cells() < kMinBarCells && num_fields > kFieldsBeforeBar) tail = tail_text(row, --num_fields, true);
  if (cells() >= kMinBarCells) return position + bar_text(row, cells()) + ' ' + percent + tail;

  while (num_fields > 0 && (position + percent + tail).size() > width) tail = tail_text(row, --num_fields, true);
  if ((position + percent + tail).size() > width) tail.clear();
  return (position + percent + tail).substr(0, width);
}

std::string line_text(const ProgressRow& row) {
  return position_text(row) + ' ' + percent_text(row) + tail_text(row, row.fields.size(), true);
}

std::string duration_text(double seconds) {
  const auto total = static_cast<long long>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  const long long hours = total / 3600, minutes = total / 60 % 60, rest = total % 60;
  return hours > 0 ? format("%lld:%02lld:%02lld", hours, minutes, rest) : format("%lld:%02lld", minutes, rest);
}

std::string short_number(double value) {
  constexpr std::string_view kUnits = "kMGT";
  std::size_t num_thousands = 0;
  // 999.5 rounds to 1000 when it is shown with three digits.
  while (std::abs(value) >= 999.5 && num_thousands < kUnits.size()) {
    value /= 1000;
    ++num_thousands;
  }
  if (num_thousands == 0) return format("%.3g", value);
  const int decimals = std::abs(value) >= 99.95 ? 0 : std::abs(value) >= 9.995 ? 1 : 2;
  return format("%.*f", decimals, value) + kUnits[num_thousands - 1];
}

}  // namespace d9d
