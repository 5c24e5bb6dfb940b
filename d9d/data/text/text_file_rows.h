// Text files as rows: each file is one, unless it is empty.
//
// Example
//   const TextFileRows rows(match_files({"corpus/*.txt"}));
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "d9d/data/text/text_rows.h"

namespace d9d {

// Throws IoError that names the file, what it is and the remedy, if it begins as no text in UTF-8 does:
// foreign_format(), foreign_encoding().
void check_text_file(const std::filesystem::path& path);

class TextFileRows final : public TextRows {
 public:
  // Looks at the beginning of each file. Throws IoError for one that cannot be read, and as check_text_file().
  explicit TextFileRows(const std::vector<std::filesystem::path>& files);

  [[nodiscard]] std::int64_t num_parts() const override { return std::ssize(files_); }
  // A file that is not UTF-8 is a row with a problem. Throws IoError for a file that cannot be read.
  void read(std::int64_t part, const std::function<void(const TextRow&)>& each) const override;
  [[nodiscard]] std::string place(std::int64_t part, std::int64_t row) const override;
  [[nodiscard]] std::string fingerprint() const override;
  [[nodiscard]] std::string content_fingerprint() const override;

 private:
  std::vector<std::filesystem::path> files_;
};

}  // namespace d9d
