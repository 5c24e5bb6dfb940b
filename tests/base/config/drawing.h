// The record that the tests of this folder parse; pydantic_oracle.py declares the same one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"

namespace d9d {

enum class Color { kRed, kDarkBlue };
constexpr auto enum_names(Color) {
  return std::to_array<EnumName<Color>>({{Color::kRed, "red"}, {Color::kDarkBlue, "dark_blue"}});
}

struct Circle {
  double radius = 1.0;
  static constexpr Tag kTag = {"shape", "circle"};
  static constexpr auto fields() { return record<Circle>(required("radius", &Circle::radius, greater_than(0))); }
};

struct Square {
  std::int64_t width = 1;
  Color color = Color::kRed;
  static constexpr Tag kTag = {"shape", "square"};
  static constexpr auto fields() {
    return record<Square>(defaulted("width", &Square::width), defaulted("color", &Square::color));
  }
};

using Shape = std::variant<Circle, Square>;

struct Drawing {
  std::string name = {};
  std::optional<std::string> note = {};
  std::int64_t count = 3;
  std::vector<Shape> shapes = {};
  std::optional<Shape> frame = {};
  static constexpr auto fields() {
    return record<Drawing>(required("name", &Drawing::name), required("note", &Drawing::note),
                           defaulted("count", &Drawing::count, at_least(1)), defaulted("shapes", &Drawing::shapes),
                           defaulted("frame", &Drawing::frame));
  }
};

}  // namespace d9d
