// Whole numbers of JSON files from elsewhere. `get<std::int64_t>` of nlohmann's library truncates 2.5 to 2, and has
// undefined behaviour for 1e30.
//
// Example
//   manifest.step = json_integer(json.at("step"));
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

namespace d9d {

// The integer that `value`, of either kind of nlohmann's JSON, holds; none unless it is an integer of 64 bits.
template <typename AnyJson>
[[nodiscard]] std::optional<std::int64_t> find_json_integer(const AnyJson& value) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits =
      value.is_number_unsigned() ? value.template get<std::uint64_t>() <= kMax : value.is_number_integer();
  return fits ? std::optional(value.template get<std::int64_t>()) : std::nullopt;
}

// The same. Throws nlohmann::json::type_error, as that library's conversions do, where there is none.
template <typename AnyJson>
[[nodiscard]] std::int64_t json_integer(const AnyJson& value) {
  if (const auto integer = find_json_integer(value)) return *integer;
  throw nlohmann::json::type_error::create(302, "expected a whole number of 64 bits, got " + value.dump(), &value);
}

template <typename AnyJson>
[[nodiscard]] std::vector<std::int64_t> json_integers(const AnyJson& list) {
  if (!list.is_array()) throw nlohmann::json::type_error::create(302, "expected a list, got " + list.dump(), &list);
  std::vector<std::int64_t> integers;
  for (const auto& each : list) integers.push_back(json_integer(each));
  return integers;
}

}  // namespace d9d
