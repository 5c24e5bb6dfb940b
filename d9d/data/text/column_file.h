// Columns of one Parquet or Arrow file, read by Arrow C++ in libd9d_arrow.so, which is opened at first use
// (docs/decisions/0019-arrow-from-the-wheel.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "d9d/data/text/text_rows.h"

namespace d9d {

enum class ColumnFormat {
  kParquet,  // parts are row groups
  kArrow,    // Arrow's IPC stream or file; parts are record batches
};

// Reading is thread-safe. Nothing throws but the functions that are passed in.
class ColumnFile {
 public:
  ColumnFile() = default;
  ColumnFile(const ColumnFile&) = delete;
  ColumnFile& operator=(const ColumnFile&) = delete;
  virtual ~ColumnFile() = default;

  // What is wrong with the whole file: it is damaged, or has rows and no such column or none of that content. Then
  // without parts.
  [[nodiscard]] virtual const std::string& problem() const = 0;
  [[nodiscard]] virtual std::int64_t num_parts() const = 0;
  // Calls each(row) with rows counted from the file's begin. Only the columns that were asked for are read, some
  // thousand rows at a time.
  virtual void read(std::int64_t part, const std::function<void(const TextRow&)>& each) const = 0;
};

struct ColumnRequest {
  std::filesystem::path path = {};
  ColumnFormat format = ColumnFormat::kParquet;
  std::vector<std::string> columns = {};
  ColumnContent content = ColumnContent::kText;
};

// Throws ConfigError where this build has no Arrow, or where the library or those of the wheel cannot be opened.
[[nodiscard]] std::unique_ptr<ColumnFile> open_column_file(const ColumnRequest& request);

// The type of libd9d_arrow.so's one function, "d9d_open_column_file".
using OpenColumnFile = std::unique_ptr<ColumnFile> (*)(const ColumnRequest& request);

}  // namespace d9d
