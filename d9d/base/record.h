// Records: plain structs that list their fields once, for JSON (base/config) and for trees of tensors (core/tree).
//
// Example
//   struct ScheduleConfig {
//     std::int64_t period_steps = 10;  // optimiser steps between two log lines
//     std::optional<std::string> note = {};
//     static constexpr auto fields() {
//       using Schedule = ScheduleConfig;
//       return d9d::record<Schedule>(d9d::required("period_steps", &Schedule::period_steps, d9d::at_least(1)),
//                                    d9d::defaulted("note", &Schedule::note));
//     }
//   };
// A record remains an aggregate: default member initialisers are its defaults, and designated initialisers build it in
// code and may leave members out. A field that is missing from fields() is a compile error.
//
// A configuration record may also declare
//   static constexpr d9d::Tag kTag = {"provider", "jsonl"};   // as an alternative of a std::variant of records
//   void validate(const d9d::ConfigPath& path) const;         // checks rules across fields; throws ConfigError
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace d9d {

struct ConfigPath;  // the position in a file: base/config/config_path.h
class ValueType;    // the JSON form of a type: base/config/value_type.h

// The JSON form of T. Instantiating it takes a second or more for a large record (base/config/describe.h). The header
// of such a record declares it `extern template`, and its .cpp instantiates it once for all users.
template <class T>
[[nodiscard]] const ValueType& json_type();

// Selects a record among the alternatives of a std::variant: {"provider": "jsonl", ...}. All alternatives share the
// key. The key must be present, unless one alternative has no tag: a missing key selects that alternative.
struct Tag {
  std::string_view key;
  std::string_view value;
};

// A range of one number, checked when the record is read from JSON. Sides that are not set are unlimited.
struct Range {
  double min = 0;
  double max = 0;
  bool has_min = false;
  bool has_max = false;
  bool exclusive_min = false;  // value > min instead of value >= min
  bool exclusive_max = false;
};
[[nodiscard]] constexpr Range at_least(double min) { return {.min = min, .has_min = true}; }
[[nodiscard]] constexpr Range greater_than(double min) { return {.min = min, .has_min = true, .exclusive_min = true}; }
[[nodiscard]] constexpr Range between(double min, double max) {
  return {.min = min, .max = max, .has_min = true, .has_max = true};
}
[[nodiscard]] constexpr Range half_open(double min, double max) {  // min <= value < max
  return {.min = min, .max = max, .has_min = true, .has_max = true, .exclusive_max = true};
}

// One field of record T: its name (the JSON key), its member, and the range of its value.
template <class T, class Value>
struct Field {
  std::string_view name;  // empty: flattened
  Value T::*member;
  bool is_required = true;  // false: without the key the default member initialiser applies
  Range range = {};
};

template <class T, class Value>
[[nodiscard]] constexpr Field<T, Value> required(std::string_view name, Value T::*member, Range range = {}) {
  return {.name = name, .member = member, .is_required = true, .range = range};
}
template <class T, class Value>
[[nodiscard]] constexpr Field<T, Value> defaulted(std::string_view name, Value T::*member, Range range = {}) {
  return {.name = name, .member = member, .is_required = false, .range = range};
}
// The member is a record whose keys are written beside this record's own: {"paths": [], "shuffle": true} instead of
// {"paths": [], "loader": {"shuffle": true}}.
template <class T, class Value>
[[nodiscard]] constexpr Field<T, Value> flattened(Value T::*member) {
  return {.name = {}, .member = member};
}
// A field of a record that is not a configuration (a batch, an output).
template <class T, class Value>
[[nodiscard]] constexpr Field<T, Value> field(std::string_view name, Value T::*member) {
  return required(name, member);
}

namespace detail {
struct AnyValue {
  template <class T>
  operator T() const;  // NOLINT: converts to anything, never defined
};
template <class T, class... Args>
constexpr std::size_t count_members() {
  if constexpr (requires { T{Args{}..., AnyValue{}}; }) {
    return count_members<T, Args..., AnyValue>();
  } else {
    return sizeof...(Args);
  }
}
}  // namespace detail

// The field list of record T; a compile error if T has members that are not listed.
template <class T, class... Values>
[[nodiscard]] constexpr std::tuple<Field<T, Values>...> record(const Field<T, Values>&... fields) {
  return {fields...};
}

template <class T>
concept Record = std::is_class_v<T> && requires {
  T::fields();
};

namespace detail {

template <class T, class A, class B>
constexpr bool names_same_member(const Field<T, A>& a, const Field<T, B>& b) {
  if constexpr (std::is_same_v<A, B>) {
    return a.member == b.member;
  } else {
    return false;
  }
}

// How many pairs (i, j) of fields name the same member; every field is such a pair with itself.
template <class... Fields>
constexpr std::size_t count_same_members(const std::tuple<Fields...>& fields) {
  const auto count_same = [&](const auto& field) {
    return std::apply(
        [&](const Fields&... others) { return (std::size_t{names_same_member(field, others)} + ... + 0); }, fields);
  };
  return std::apply([&](const Fields&... each) { return (count_same(each) + ... + 0); }, fields);
}

// A class, so that each record's mistakes are reported once.
template <class T>
struct CheckedFields {
  static constexpr bool kIsAggregate = std::is_aggregate_v<T>;
  static_assert(kIsAggregate,
                "a record is an aggregate: remove its constructors, private members and virtual functions");
  static constexpr std::size_t kNumFields = std::tuple_size_v<decltype(T::fields())>;
  static constexpr bool kIsDistinct = count_same_members(T::fields()) == kNumFields;
  static_assert(kIsDistinct, "fields() names a member of the record twice: name each member once");
  static_assert(!kIsAggregate || !kIsDistinct || kNumFields >= count_members<T>(),
                "fields() forgets a member of the record: it must list every member, once");
  static_assert(!kIsAggregate || !kIsDistinct || kNumFields <= count_members<T>(),
                "fields() lists more than the members of the record: name each member once, and none of a base class");
  static constexpr auto kFields = T::fields();
};

}  // namespace detail

// Calls visit(field) for each field of T in declaration order.
template <Record T, class Visit>
constexpr void for_each_field(Visit&& visit) {
  std::apply([&](const auto&... fields) { (visit(fields), ...); }, detail::CheckedFields<T>::kFields);
}

}  // namespace d9d
