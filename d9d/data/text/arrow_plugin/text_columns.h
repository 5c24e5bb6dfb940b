// Rows from Arrow's arrays.
#pragma once

#include <arrow/api.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/data/text/column_file.h"

namespace d9d::arrow_plugin {

// The indices of columns by name; the problem if one is missing, occurs twice or is not of that content.
struct FoundColumns {
  std::vector<int> indices = {};
  std::string problem = {};
};
[[nodiscard]] FoundColumns find_columns(const arrow::Schema& schema, const ColumnRequest& request);

// Calls each() for the rows of arrays of one length, the first of which is row `first_row`. Rows with a null or with
// bytes that are not UTF-8 have a problem; arrays that are damaged are one row with a problem.
void read_rows(const arrow::ArrayVector& columns, const ColumnRequest& request, std::int64_t first_row,
               const std::function<void(const TextRow&)>& each);

// Whether arrays of the type hold texts, or nothing but nulls. text_at() expects one, validated, and no null at `row`.
[[nodiscard]] bool is_text(const arrow::DataType& type);
[[nodiscard]] std::string_view text_at(const arrow::Array& array, std::int64_t row);
[[nodiscard]] bool is_null_at(const arrow::Array& array, std::int64_t row);

}  // namespace d9d::arrow_plugin
