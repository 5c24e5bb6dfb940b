#include "d9d/tracker/value_json.h"

#include <cmath>
#include <cstdint>

namespace d9d {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxExactInteger = 9007199254740992;  // 2^53

Json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  const bool is_integer = value == std::trunc(value) && std::abs(value) <= kMaxExactInteger;
  if (is_integer && !(value == 0 && std::signbit(value))) return static_cast<std::int64_t>(value);
  return value;
}

struct ToJson {
  Json operator()(double value) const { return number(value); }
  Json operator()(const CountHistogram& histogram) const {
    Json counts = Json::array();
    for (const double count : histogram.counts) counts.push_back(number(count));
    return counts;
  }
  Json operator()(const TrackerText& text) const { return {{"text", text.text}}; }
  Json operator()(const TrackerPicture& picture) const { return {{"svg", picture.svg}}; }
};

}  // namespace

Json value_json(const TrackerValue& value) { return std::visit(ToJson{}, value); }

}  // namespace d9d
