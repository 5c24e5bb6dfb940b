// Reads rows from Parquet or Arrow files.
//
// Example
//   const ColumnRows rows(match_files({"corpus/*.parquet"}), ColumnFormat::kParquet, {"text"});
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "d9d/data/text/column_file.h"
#include "d9d/data/text/file_fingerprint.h"
#include "d9d/data/text/text_rows.h"

namespace d9d {

class ColumnRows final : public TextRows {
 public:
  // Opens all files. Throws ConfigError if Arrow C++ is not available, and IoError for a file that is damaged, has
  // another format, or lacks a requested column with strings (with ColumnContent::kJson: with values that can be
  // converted to JSON).
  ColumnRows(const std::vector<std::filesystem::path>& files, ColumnFormat format, std::vector<std::string> columns,
             ColumnContent content = ColumnContent::kText);

  [[nodiscard]] std::int64_t num_parts() const override { return std::ssize(parts_); }
  // Reports as problems nulls (with ColumnContent::kJson they are the JSON null), bytes that are not UTF-8, and damaged
  // rows.
  void read(std::int64_t part, const std::function<void(const TextRow&)>& each) const override;
  [[nodiscard]] std::string place(std::int64_t part, std::int64_t row) const override;
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string fingerprint() const override { return columns_text() + file_fingerprint(paths_); }
  [[nodiscard]] std::string content_fingerprint() const override {
    return columns_text() + d9d::content_fingerprint(paths_);
  }

 private:
  [[nodiscard]] std::string columns_text() const;  // describes what is read, for the fingerprints

  struct Part {
    std::size_t file;
    std::int64_t part;  // index of the part in the file
  };

  std::vector<std::filesystem::path> paths_;
  std::vector<std::string> columns_;
  ColumnContent content_;
  std::vector<std::unique_ptr<ColumnFile>> files_;
  std::vector<Part> parts_;
};

}  // namespace d9d
