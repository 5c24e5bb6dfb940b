#include "d9d/checkpoint/json_numbers.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "d9d/base/check.h"

namespace d9d {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNonFinite = "non_finite";
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array<std::pair<const char*, double>, 3> kNumbers = {
    {{"nan", std::numeric_limits<double>::quiet_NaN()}, {"inf", kInfinity}, {"-inf", -kInfinity}}};

bool is_marked(const Json& json) { return json.is_object() && json.size() == 1 && json.contains(kNonFinite); }

void check_text(const Json& value) {
  D9D_CHECK(!value.is_binary(), StateError,
            "[checkpoint] expected numbers and text to save, got bytes. Save them as a list of numbers.");
  try {
    if (value.is_string()) (void)value.dump();
  } catch (const nlohmann::json::exception& error) {
    throw StateError(
        cat("[checkpoint] expected text in UTF-8 to save, got ", error.what(), ". Save bytes as a list of numbers."));
  }
}

}  // namespace

Json as_text_json(const Json& values) {
  if (values.is_number_float() && !std::isfinite(values.get<double>())) {
    const double number = values.get<double>();
    return {{kNonFinite, std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
  }
  check_text(values);
  if (!values.is_structured()) return values;
  Json result = values;
  for (const auto& [name, value] : result.items()) {
    check_text(Json(name));
    value = as_text_json(value);
  }
  if (is_marked(values)) result[kNonFinite] = Json::array({std::move(result[kNonFinite])});
  return result;
}

Json from_text_json(const Json& json) {
  if (!json.is_structured()) return json;
  Json result = json;
  if (is_marked(json)) {
    const Json& marked = json.at(kNonFinite);
    for (const auto& [name, number] : kNumbers) {
      if (marked == name) return number;
    }
    if (marked.is_array() && marked.size() == 1) result[kNonFinite] = marked.front();
  }
  for (auto& each : result) each = from_text_json(each);
  return result;
}

}  // namespace d9d
