// Reads rows from files of JSON lines, one object per line. Blank lines and empty files are skipped.
//
// Example
//   const JsonlRows rows(match_files({"corpus/*.jsonl"}), {"text"});      // {"text": "...", ...}
//   const JsonlRows pairs(match_files({"pairs.jsonl"}), {"prompt", "completion"});
//   const JsonlRows chats(match_files({"chats.jsonl"}), {"messages"}, JsonlRows::kPartBytes,
//                         ColumnContent::kJson);
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "d9d/base/io/mapped_file.h"
#include "d9d/data/text/file_fingerprint.h"
#include "d9d/data/text/text_rows.h"

namespace d9d {

class JsonlRows final : public TextRows {
 public:
  static constexpr std::int64_t kPartBytes = std::int64_t{8} << 20;

  // A part has the lines that begin within a range of part_bytes bytes of a file. Files are memory-mapped. Throws
  // IoError for a file that cannot be mapped, and the IoError of check_json_lines() for one whose lines are not
  // objects.
  JsonlRows(const std::vector<std::filesystem::path>& files, std::vector<std::string> columns,
            std::int64_t part_bytes = kPartBytes, ColumnContent content = ColumnContent::kText);

  [[nodiscard]] std::int64_t num_parts() const override { return std::ssize(parts_); }
  // Reports as a problem a line that is not a JSON object or not UTF-8, lacks a column, or has a value other than a
  // string in it. With ColumnContent::kJson, any value is accepted, but not a line that is nested too deeply; columns
  // behind the first may be missing.
  void read(std::int64_t part, const std::function<void(const TextRow&)>& each) const override;
  [[nodiscard]] std::string place(std::int64_t part, std::int64_t row) const override;  // row: the line's byte offset
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string fingerprint() const override { return columns_text() + file_fingerprint(files_); }
  [[nodiscard]] std::string content_fingerprint() const override {
    return columns_text() + d9d::content_fingerprint(files_);
  }

 private:
  [[nodiscard]] std::string columns_text() const;  // describes what is read, for the fingerprints

  struct Part {
    std::size_t file;
    std::size_t begin;  // bytes; lines that begin before `end` are read to their ends
    std::size_t end;
  };
  [[nodiscard]] std::string_view text_of(std::size_t file) const;

  std::vector<std::filesystem::path> files_;
  std::vector<std::string> columns_;
  ColumnContent content_;
  std::vector<std::unique_ptr<MappedFile>> mappings_;
  std::vector<Part> parts_;
};

}  // namespace d9d
