// Text files as rows: each file is one.
//
// Example
//   const TextFileRows rows(match_files({"corpus/*.txt"}));
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "d9d/data/text/text_rows.h"

namespace d9d {

class TextFileRows final : public TextRows {
 public:
  explicit TextFileRows(std::vector<std::filesystem::path> files) : files_(std::move(files)) {}

  [[nodiscard]] std::int64_t num_parts() const override { return std::ssize(files_); }
  // A file that is empty or is not UTF-8 is a row with a problem. Throws IoError for a file that cannot be read.
  void read(std::int64_t part, const std::function<void(const TextRow&)>& each) const override;
  [[nodiscard]] std::string place(std::int64_t part, std::int64_t row) const override;
  [[nodiscard]] std::string fingerprint() const override;
  [[nodiscard]] std::string content_fingerprint() const override;

 private:
  std::vector<std::filesystem::path> files_;
};

}  // namespace d9d
