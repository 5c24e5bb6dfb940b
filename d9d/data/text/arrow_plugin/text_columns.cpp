#include "d9d/data/text/arrow_plugin/text_columns.h"

#include <optional>
#include <string_view>

#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d::arrow_plugin {

namespace {

bool is_text(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW:
      return true;
    case arrow::Type::DICTIONARY:
      return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
    default:
      return false;
  }
}

// Expects a validated array of text and no null at `row`.
std::string_view text_at(const arrow::Array& array, std::int64_t row) {
  switch (array.type_id()) {
    case arrow::Type::STRING:
      return static_cast<const arrow::StringArray&>(array).GetView(row);
    case arrow::Type::LARGE_STRING:
      return static_cast<const arrow::LargeStringArray&>(array).GetView(row);
    case arrow::Type::STRING_VIEW:
      return static_cast<const arrow::StringViewArray&>(array).GetView(row);
    default: {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
      return text_at(*dictionary.dictionary(), dictionary.GetValueIndex(row));
    }
  }
}

bool is_null_at(const arrow::Array& array, std::int64_t row) {
  if (array.IsNull(row)) return true;
  if (array.type_id() != arrow::Type::DICTIONARY) return false;
  const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
  return dictionary.dictionary()->IsNull(dictionary.GetValueIndex(row));
}

// The same array as bytes: its offsets are checked then, and its characters are not.
std::shared_ptr<arrow::DataType> bytes_of(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::STRING:
      return arrow::binary();
    case arrow::Type::LARGE_STRING:
      return arrow::large_binary();
    default:
      return arrow::binary_view();
  }
}

arrow::Status check_offsets(const arrow::Array& array) {
  if (array.type_id() == arrow::Type::DICTIONARY) {
    const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
    ARROW_RETURN_NOT_OK(check_offsets(*dictionary.dictionary()));
    return array.ValidateFull();
  }
  const auto data = array.data()->Copy();
  data->type = bytes_of(*array.type());
  return arrow::MakeArray(data)->ValidateFull();
}

std::string problem_at(const arrow::Array& array, std::int64_t row, const std::string& name) {
  if (is_null_at(array, row)) return "null instead of text in column '" + name + "'";
  const auto invalid = invalid_utf8_at(text_at(array, row));
  if (!invalid) return {};
  return "bytes that are not UTF-8, from byte " + std::to_string(*invalid) + " on, in column '" + name + "'";
}

}  // namespace

FoundColumns find_text_columns(const arrow::Schema& schema, const std::vector<std::string>& names) {
  FoundColumns found;
  for (const std::string& name : names) {
    const std::vector<int> indices = schema.GetAllFieldIndices(name);
    if (indices.size() != 1) {
      std::string all;
      for (const auto& field : schema.fields()) all += (all.empty() ? "" : ", ") + field->name();
      return {.problem = (indices.empty() ? "no column '" : "several columns '") + name + "' among " + all};
    }
    const arrow::DataType& type = *schema.field(indices.front())->type();
    if (!is_text(type)) return {.problem = type.ToString() + " instead of text in column '" + name + "'"};
    found.indices.push_back(indices.front());
  }
  return found;
}

void read_text(const arrow::ArrayVector& columns, const std::vector<std::string>& names, std::int64_t first_row,
               const std::function<void(const TextRow&)>& each) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const arrow::Status status = check_offsets(*columns[i]);
    if (status.ok()) continue;
    return each({.row = first_row, .problem = "damaged rows of column '" + names[i] + "': " + status.message()});
  }
  const std::int64_t num_rows = columns.front()->length();
  for (std::int64_t row = 0; row < num_rows; ++row) {
    TextRow text{.row = first_row + row};
    for (std::size_t i = 0; i < columns.size() && text.problem.empty(); ++i) {
      text.problem = problem_at(*columns[i], row, names[i]);
      if (text.problem.empty()) text.columns.push_back(text_at(*columns[i], row));
    }
    if (!text.problem.empty()) text.columns.clear();
    each(text);
  }
}

}  // namespace d9d::arrow_plugin
