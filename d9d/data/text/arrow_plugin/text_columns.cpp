#include "d9d/data/text/arrow_plugin/text_columns.h"

#include <optional>
#include <utility>

#include "d9d/data/text/arrow_plugin/json_columns.h"
#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d::arrow_plugin {

bool is_text(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::NA:  // the type of columns that have only nulls
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

namespace {

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

// Returns the array with binary instead of string types, so that validation checks its offsets but not its characters.
std::shared_ptr<arrow::ArrayData> with_bytes(const arrow::ArrayData& data) {
  auto copy = data.Copy();
  for (auto& child : copy->child_data) child = with_bytes(*child);
  const auto field_of = [&](int i) { return data.type->field(i)->WithType(copy->child_data[i]->type); };
  switch (data.type->id()) {
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW:
      copy->type = bytes_of(*data.type);
      break;
    case arrow::Type::DICTIONARY:
      copy->dictionary = with_bytes(*data.dictionary);
      copy->type =
          arrow::dictionary(static_cast<const arrow::DictionaryType&>(*data.type).index_type(), copy->dictionary->type);
      break;
    case arrow::Type::LIST:
      copy->type = arrow::list(field_of(0));
      break;
    case arrow::Type::LARGE_LIST:
      copy->type = arrow::large_list(field_of(0));
      break;
    case arrow::Type::STRUCT: {
      arrow::FieldVector fields;
      for (int i = 0; i < data.type->num_fields(); ++i) fields.push_back(field_of(i));
      copy->type = arrow::struct_(std::move(fields));
      break;
    }
    default:
      break;
  }
  return copy;
}

arrow::Status check_offsets(const arrow::Array& array) {
  return arrow::MakeArray(with_bytes(*array.data()))->ValidateFull();
}

std::string problem_at(const arrow::Array& array, std::int64_t row, const std::string& name) {
  if (is_null_at(array, row)) return "null instead of text in column '" + name + "'";
  const auto invalid = invalid_utf8_at(text_at(array, row));
  if (!invalid) return {};
  return "bytes that are not UTF-8, from byte " + std::to_string(*invalid) + " on, in column '" + name + "'";
}

// Returns the value as text, which points into the array or into `kept`. Sets `problem` if there is one.
std::string_view value_at(const arrow::Array& array, std::int64_t row, const std::string& name, ColumnContent content,
                          std::string& kept, std::string& problem) {
  if (content == ColumnContent::kJson && is_null_at(array, row)) return "null";
  if (is_text(*array.type())) {
    problem = problem_at(array, row, name);
    return problem.empty() ? text_at(array, row) : std::string_view();
  }
  const auto json = json_at(array, row);
  if (json) return kept = *json;
  problem = "bytes that are not UTF-8 in column '" + name + "'";
  return {};
}

bool is_list_of_integers(const arrow::DataType& type) {
  return type.num_fields() == 1 && type.id() != arrow::Type::STRUCT && arrow::is_integer(type.field(0)->type()->id());
}

}  // namespace

FoundColumns find_columns(const arrow::Schema& schema, const ColumnRequest& request) {
  FoundColumns found;
  for (const std::string& name : request.columns) {
    const std::vector<int> indices = schema.GetAllFieldIndices(name);
    if (indices.size() != 1) {
      std::string all;
      for (const auto& field : schema.fields()) all += (all.empty() ? "" : ", ") + field->name();
      return {.problem = (indices.empty() ? "no column '" : "several columns '") + name + "' among " + all};
    }
    const arrow::DataType& type = *schema.field(indices.front())->type();
    const bool wants_json = request.content == ColumnContent::kJson;
    if (!(wants_json ? has_json(type) : is_text(type))) {
      return {.problem =
                  type.ToString() + " instead of " + (wants_json ? "lists and structs of texts" : "text") +
                  (is_list_of_integers(type) ? " (ids of tokens are data of kind \"tokens\", in a flat file)" : "") +
                  " in column '" + name + "'"};
    }
    found.indices.push_back(indices.front());
  }
  return found;
}

void read_rows(const arrow::ArrayVector& columns, const ColumnRequest& request, std::int64_t first_row,
               const std::function<void(const TextRow&)>& each) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const arrow::Status status = check_offsets(*columns[i]);
    if (status.ok()) continue;
    return each({.row = first_row,
                 .problem = "damaged rows of column '" + request.columns[i] + "': " + status.message(),
                 .num_rows = columns[i]->length()});
  }
  const std::int64_t num_rows = columns.front()->length();
  std::vector<std::string> kept(columns.size());
  for (std::int64_t row = 0; row < num_rows; ++row) {
    TextRow text{.row = first_row + row};
    for (std::size_t i = 0; i < columns.size() && text.problem.empty(); ++i) {
      text.columns.push_back(value_at(*columns[i], row, request.columns[i], request.content, kept[i], text.problem));
    }
    if (!text.problem.empty()) text.columns.clear();
    each(text);
  }
}

}  // namespace d9d::arrow_plugin
