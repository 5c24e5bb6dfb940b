// Records and the types of their fields.
#include <string>
#include <variant>
#include <vector>

#include "d9d/base/config/record_json.h"

enum class Curve { kLinear, kCosine };
#ifndef enum_without_names
// expect: this enum is no type of a field: list its names in `constexpr auto enum_names(Enum)` beside it
constexpr auto enum_names(Curve) {
  return std::to_array<d9d::EnumName<Curve>>({{Curve::kLinear, "linear"}, {Curve::kCosine, "cosine"}});
}
#endif

struct Phase {
  std::int64_t steps = 0;
#ifndef member_without_fields
  // expect: this class is no type of a field: list its members in `static constexpr auto fields()`
  static constexpr auto fields() { return d9d::record<Phase>(d9d::required("steps", &Phase::steps)); }
#endif
};

struct Small {
  static constexpr d9d::Tag kTag = {"size", "small"};
  std::int64_t width = 0;
#ifndef alternative_without_fields
  // expect: list its members in `static constexpr auto fields()` (of a std::variant, those of each alternative)
  static constexpr auto fields() { return d9d::record<Small>(d9d::required("width", &Small::width)); }
#endif
};
struct Large {
  static constexpr d9d::Tag kTag = {"size", "large"};
  std::int64_t width = 0;
  static constexpr auto fields() { return d9d::record<Large>(d9d::required("width", &Large::width)); }
};

struct Config {
#ifdef record_with_constructor
  // expect: a record is an aggregate: remove its constructors, private members and virtual functions
  Config() {}
#endif
  Curve curve = Curve::kLinear;
  std::vector<Phase> phases = {};
  std::variant<Small, Large> model = {};
#ifdef number_of_another_type
  // expect: this number is no type of a field: use std::int64_t, double or bool
  float rate = 0;
#else
  double rate = 0;
#endif
  double decay = 0;
  std::string name = {};

  static constexpr auto fields() {
    return d9d::record<Config>(d9d::required("curve", &Config::curve), d9d::required("phases", &Config::phases),
                               d9d::required("model", &Config::model), d9d::required("rate", &Config::rate),
#ifdef fields_names_a_member_twice
                               // expect: fields() names a member of the record twice: name each member once
                               d9d::required("decay", &Config::rate),
#elif defined fields_names_an_additional_member
                               // expect: fields() names a member of the record twice: name each member once
                               d9d::required("decay", &Config::decay), d9d::required("decay_rate", &Config::decay),
#elif !defined fields_forgets_a_member
                               // expect: fields() forgets a member of the record: it must list every member, once
                               d9d::required("decay", &Config::decay),
#endif
                               d9d::required("name", &Config::name));
  }
};

void use() { (void)d9d::parse_record<Config>({}); }
