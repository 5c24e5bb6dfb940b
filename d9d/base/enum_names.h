// Names of enumerators, listed once beside the enum, for JSON and for messages.
//
// Example
//   enum class Curve { kLinear, kCosine };
//   constexpr auto enum_names(Curve) {
//     return std::to_array<EnumName<Curve>>({{Curve::kLinear, "linear"}, {Curve::kCosine, "cosine"}});
//   }
//   enum_name(Curve::kCosine);   // "cosine"
#pragma once

#include <array>
#include <string_view>
#include <type_traits>

namespace d9d {

template <class E>
struct EnumName {
  E value;
  std::string_view name;
};

template <class E>
concept NamedEnum = std::is_enum_v<E> && requires {
  enum_names(E{});
};

// The listed name; empty for a value that is not listed.
template <NamedEnum E>
[[nodiscard]] constexpr std::string_view enum_name(E value) {
  for (const auto& entry : enum_names(E{})) {
    if (entry.value == value) return entry.name;
  }
  return {};
}

}  // namespace d9d
