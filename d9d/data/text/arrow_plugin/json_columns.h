// Values of Arrow's arrays as JSON.
#pragma once

#include <arrow/api.h>

#include <optional>
#include <string>

namespace d9d::arrow_plugin {

// Texts, numbers, booleans and nulls, and lists and structs of these.
[[nodiscard]] bool has_json(const arrow::DataType& type);
// Expects a validated array of such a type. Unset if a text is not UTF-8.
[[nodiscard]] std::optional<std::string> json_at(const arrow::Array& array, std::int64_t row);

}  // namespace d9d::arrow_plugin
