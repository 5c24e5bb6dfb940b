#include "d9d/data/text/arrow_plugin/json_columns.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "d9d/data/text/arrow_plugin/text_columns.h"
#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d::arrow_plugin {

namespace {

// Returns elements [first, first + count) of `values` as a list. Sets is_valid to false if a text is not UTF-8.
nlohmann::ordered_json list_of(const arrow::Array& values, std::int64_t first, std::int64_t count, bool& is_valid);

nlohmann::ordered_json value_of(const arrow::Array& array, std::int64_t row, bool& is_valid) {
  if (is_null_at(array, row)) return nullptr;
  if (is_text(*array.type())) {
    const std::string_view text = text_at(array, row);
    is_valid = is_valid && !invalid_utf8_at(text);
    return std::string(text);
  }
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      return static_cast<const arrow::BooleanArray&>(array).Value(row);
    case arrow::Type::INT8:
      return static_cast<const arrow::Int8Array&>(array).Value(row);
    case arrow::Type::INT16:
      return static_cast<const arrow::Int16Array&>(array).Value(row);
    case arrow::Type::INT32:
      return static_cast<const arrow::Int32Array&>(array).Value(row);
    case arrow::Type::INT64:
      return static_cast<const arrow::Int64Array&>(array).Value(row);
    case arrow::Type::UINT8:
      return static_cast<const arrow::UInt8Array&>(array).Value(row);
    case arrow::Type::UINT16:
      return static_cast<const arrow::UInt16Array&>(array).Value(row);
    case arrow::Type::UINT32:
      return static_cast<const arrow::UInt32Array&>(array).Value(row);
    case arrow::Type::UINT64:
      return static_cast<const arrow::UInt64Array&>(array).Value(row);
    case arrow::Type::FLOAT:
      return static_cast<const arrow::FloatArray&>(array).Value(row);
    case arrow::Type::DOUBLE:
      return static_cast<const arrow::DoubleArray&>(array).Value(row);
    case arrow::Type::LIST: {
      const auto& list = static_cast<const arrow::ListArray&>(array);
      return list_of(*list.values(), list.value_offset(row), list.value_length(row), is_valid);
    }
    case arrow::Type::LARGE_LIST: {
      const auto& list = static_cast<const arrow::LargeListArray&>(array);
      return list_of(*list.values(), list.value_offset(row), list.value_length(row), is_valid);
    }
    case arrow::Type::STRUCT: {
      const auto& fields = static_cast<const arrow::StructArray&>(array);
      nlohmann::ordered_json object = nlohmann::ordered_json::object();
      for (int i = 0; i < fields.num_fields(); ++i) {
        if (is_null_at(*fields.field(i), row)) continue;  // a key that other rows have
        object[array.type()->field(i)->name()] = value_of(*fields.field(i), row, is_valid);
      }
      return object;
    }
    default: {  // times, decimals and bytes become the text that Arrow prints
      const auto scalar = array.GetScalar(row);
      return scalar.ok() ? nlohmann::ordered_json((*scalar)->ToString()) : nlohmann::ordered_json();
    }
  }
}

nlohmann::ordered_json list_of(const arrow::Array& values, std::int64_t first, std::int64_t count, bool& is_valid) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (std::int64_t i = first; i < first + count; ++i) list.push_back(value_of(values, i, is_valid));
  return list;
}

}  // namespace

bool has_json(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
      return has_json(*type.field(0)->type());
    case arrow::Type::STRUCT:
      return true;
    default:
      return is_text(type) || arrow::is_integer(type.id()) || type.id() == arrow::Type::BOOL ||
             type.id() == arrow::Type::FLOAT || type.id() == arrow::Type::DOUBLE;
  }
}

std::optional<std::string> json_at(const arrow::Array& array, std::int64_t row) {
  bool is_valid = true;
  const nlohmann::ordered_json value = value_of(array, row, is_valid);
  if (!is_valid) return std::nullopt;
  return value.dump(-1, ' ', false,
                    nlohmann::ordered_json::error_handler_t::replace);  // field names may be invalid UTF-8
}

}  // namespace d9d::arrow_plugin
