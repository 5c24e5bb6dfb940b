// Rows of text from Arrow's arrays.
#pragma once

#include <arrow/api.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "d9d/data/text/text_rows.h"

namespace d9d::arrow_plugin {

// The indices of columns by name; the problem if one is missing, occurs twice or is not of text.
struct FoundColumns {
  std::vector<int> indices = {};
  std::string problem = {};
};
[[nodiscard]] FoundColumns find_text_columns(const arrow::Schema& schema, const std::vector<std::string>& names);

// Calls each() for the rows of arrays of one length, the first of which is row `first_row`. Rows with a null or with
// bytes that are not UTF-8 have a problem; arrays that are damaged are one row with a problem.
void read_text(const arrow::ArrayVector& columns, const std::vector<std::string>& names, std::int64_t first_row,
               const std::function<void(const TextRow&)>& each);

}  // namespace d9d::arrow_plugin
