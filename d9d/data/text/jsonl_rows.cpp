#include "d9d/data/text/jsonl_rows.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/json_depth.h"
#include "d9d/data/description/data_description.h"
#include "d9d/data/text/json_lines.h"

namespace d9d {

namespace {

// Makes a row that points into `object`, which must outlive it. The row has a problem if a column is missing or its
// value is not a string. With kJson, values that are not strings are replaced by their JSON texts first, and a column
// behind the first that is missing has the text "null".
TextRow row_of(nlohmann::ordered_json& object, const std::vector<std::string>& columns, ColumnContent content) {
  TextRow row;
  if (!object.is_object()) return {.problem = cat("JSON that is no object but ", object.type_name())};
  for (const std::string& column : columns) {
    const auto found = object.find(column);
    if (found == object.end() && content == ColumnContent::kJson && !row.columns.empty()) {
      row.columns.emplace_back("null");
      continue;
    }
    if (found == object.end()) return {.problem = cat("no column '", column, "'")};
    if (content == ColumnContent::kJson && !found->is_string()) *found = found->dump();
    if (!found->is_string()) return {.problem = cat(found->type_name(), " instead of text in column '", column, "'")};
    row.columns.emplace_back(found->get_ref<const std::string&>());
  }
  return row;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

JsonlRows::JsonlRows(const std::vector<std::filesystem::path>& files, std::vector<std::string> columns,
                     std::int64_t part_bytes, ColumnContent content)
    : files_(files), columns_(std::move(columns)), content_(content) {
  for (std::size_t file = 0; file < files_.size(); ++file) {
    mappings_.push_back(std::make_unique<MappedFile>(files_[file]));
    check_json_lines(files_[file], text_of(file));
    const std::size_t size = text_of(file).size();
    const auto step = static_cast<std::size_t>(part_bytes);
    for (std::size_t begin = 0; begin < size; begin += step) {
      parts_.push_back({file, begin, std::min(begin + step, size)});
    }
  }
}

std::string_view JsonlRows::text_of(std::size_t file) const {
  const auto bytes = mappings_[file]->bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void JsonlRows::read(std::int64_t part, const std::function<void(const TextRow&)>& each) const {
  const auto [file, begin, end] = parts_[static_cast<std::size_t>(part)];
  const std::string_view text = text_of(file);
  std::size_t first = begin;
  if (begin > 0) {  // a line that begins before `begin` belongs to an earlier part
    const std::size_t newline = text.find('\n', begin - 1);
    first = newline == std::string_view::npos ? text.size() : newline + 1;
  }
  while (first < end) {
    const std::size_t newline = std::min(text.find('\n', first), text.size());
    const std::string_view line = text.substr(first, newline - first);
    if (!is_blank(line)) {
      nlohmann::ordered_json object;
      const bool is_deep = content_ == ColumnContent::kJson && json_depth(line) > kMaxJsonDepth;
      std::string problem = is_deep ? cat("JSON of more than ", kMaxJsonDepth, " levels of objects and lists")
                                    : parse_json_line(line, object);
      TextRow row = problem.empty() ? row_of(object, columns_, content_) : TextRow{.problem = std::move(problem)};
      row.row = static_cast<std::int64_t>(first);
      each(row);
    }
    first = newline + 1;
  }
}

std::string JsonlRows::place(std::int64_t part, std::int64_t row) const {
  const std::size_t file = parts_[static_cast<std::size_t>(part)].file;
  const std::string_view before = text_of(file).substr(0, static_cast<std::size_t>(row));
  return cat("line ", 1 + std::ranges::count(before, '\n'), " of '", files_[file].string(), "'");
}

std::string JsonlRows::name() const { return "JSON lines of " + name_of_files(files_); }

std::string JsonlRows::columns_text() const {
  std::string text = content_ == ColumnContent::kJson ? "jsonl of JSON\n" : "jsonl\n";
  for (const std::string& column : columns_) text += "column " + column + "\n";
  return text;
}

}  // namespace d9d
