// Reads rows from Arrow's arrays.
#pragma once

#include <arrow/api.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/data/text/column_file.h"

namespace d9d::arrow_plugin {

// The indices of the requested columns, or the problem if one is missing, occurs twice or has another content type.
struct FoundColumns {
  std::vector<int> indices = {};
  std::string problem = {};
};
[[nodiscard]] FoundColumns find_columns(const arrow::Schema& schema, const ColumnRequest& request);

// Calls each() for the rows of `columns`, which have equal lengths; the first row has the number `first_row`. Rows with
// a null, which is JSON's where that is asked for, or with bytes that are not UTF-8 have a problem; damaged arrays give
// a single row with a problem.
void read_rows(const arrow::ArrayVector& columns, const ColumnRequest& request, std::int64_t first_row,
               const std::function<void(const TextRow&)>& each);

// is_text() returns whether arrays of the type hold strings or only nulls. text_at() returns the string at `row`; it
// expects a validated array of such a type without a null at `row`.
[[nodiscard]] bool is_text(const arrow::DataType& type);
[[nodiscard]] std::string_view text_at(const arrow::Array& array, std::int64_t row);
[[nodiscard]] bool is_null_at(const arrow::Array& array, std::int64_t row);

}  // namespace d9d::arrow_plugin
