// Reads columns of a Parquet or Arrow file with Arrow C++, in libd9d_arrow.so, which is opened at first use
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

// One open file. Reading is thread-safe. Its functions throw nothing themselves, but pass on exceptions of each().
class ColumnFile {
 public:
  ColumnFile() = default;
  ColumnFile(const ColumnFile&) = delete;
  ColumnFile& operator=(const ColumnFile&) = delete;
  virtual ~ColumnFile() = default;

  // Returns the problem of the whole file: it is damaged, or it has rows but lacks a requested column of the requested
  // content. The parts of such a file must not be read. Empty: no problem.
  [[nodiscard]] virtual const std::string& problem() const = 0;
  [[nodiscard]] virtual std::int64_t num_parts() const = 0;
  // Calls each(row) for the rows of a part; their numbers count from the start of the file. Reads only the requested
  // columns, and Parquet files about a thousand rows at a time.
  virtual void read(std::int64_t part, const std::function<void(const TextRow&)>& each) const = 0;
};

struct ColumnRequest {
  std::filesystem::path path = {};
  ColumnFormat format = ColumnFormat::kParquet;
  std::vector<std::string> columns = {};
  ColumnContent content = ColumnContent::kText;
};

// Opens a file. Throws ConfigError if this build has no Arrow, or if libd9d_arrow.so or the libraries of the wheel
// cannot be opened.
[[nodiscard]] std::unique_ptr<ColumnFile> open_column_file(const ColumnRequest& request);

// The type of the only function of libd9d_arrow.so, "d9d_open_column_file".
using OpenColumnFile = std::unique_ptr<ColumnFile> (*)(const ColumnRequest& request);

}  // namespace d9d
