// Values of Arrow's arrays as JSON.
#pragma once

#include <arrow/api.h>

#include <optional>
#include <string>

namespace d9d::arrow_plugin {

// Texts, numbers, booleans, nulls and structs, and lists of these. Fields of structs may be of any type: those that
// JSON does not have, such as times, are texts.
[[nodiscard]] bool has_json(const arrow::DataType& type);
// Expects a validated array of such a type. Unset if a text is not UTF-8.
[[nodiscard]] std::optional<std::string> json_at(const arrow::Array& array, std::int64_t row);

}  // namespace d9d::arrow_plugin
