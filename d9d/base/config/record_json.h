// Conversion of records from and to JSON. Parsing is strict: unknown keys, missing keys, null where it is not allowed,
// wrong types and values out of range are errors that name the full path. Values are coerced as read_scalar.h
// describes.
//
// Example
//   const auto config = parse_record<TrainerConfig>(json, ConfigPath{.keys = "trainer", .source = "pretrain.json"});
//   std::cout << write_record(config).dump(2);
#pragma once

#include "d9d/base/config/describe.h"

namespace d9d {

namespace detail {
[[nodiscard]] Json json_schema(const ValueType& type);
}

// T: a record or a union of records.
template <class T>
[[nodiscard]] T parse_record(const Json& json, const ConfigPath& path = {}) {
  T record{};
  json_type<T>().parse(json, path, {}, &record);
  return record;
}

// Writes every key, including defaults, and doubles with all their digits: parsing the result gives an equal record.
template <class T>
[[nodiscard]] Json write_record(const T& record) {
  return json_type<T>().write(&record);
}

// JSON schema (draft 2020-12) for editors and other tools. It describes the plain form of each value, not every
// coercion that parsing allows.
template <class T>
[[nodiscard]] Json json_schema() {
  return detail::json_schema(json_type<T>());
}

}  // namespace d9d
