// Converts values of Arrow's arrays to JSON.
#pragma once

#include <arrow/api.h>

#include <optional>
#include <string>

namespace d9d::arrow_plugin {

// Returns whether values of the type can be converted: strings, integers, floats, doubles, booleans, nulls and structs,
// and lists of these. Fields of structs may be of any type; types that JSON does not have, such as times, become
// strings.
[[nodiscard]] bool has_json(const arrow::DataType& type);
// Returns the value at `row` as JSON, with the fields of structs in their order, without those that are null; nullopt
// if a text is not UTF-8.
// Expects a validated array of a type for which has_json() is true.
[[nodiscard]] std::optional<std::string> json_at(const arrow::Array& array, std::int64_t row);

}  // namespace d9d::arrow_plugin
