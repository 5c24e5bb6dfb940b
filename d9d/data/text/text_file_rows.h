// Reads text files as rows: each file is one row; empty files are skipped. A large file is read in pieces.
//
// Example
//   const TextFileRows rows(match_files({"corpus/*.txt"}));
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/data/text/text_rows.h"

namespace d9d {

// Throws IoError that names the file, its format and the remedy if its first bytes show that it is not UTF-8 text:
// foreign_format(), foreign_encoding().
void check_text_file(const std::filesystem::path& path);

class TextFileRows final : public TextRows {
 public:
  static constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

  // A piece ends at the first split position (NextCut) at or after a multiple of piece_bytes. Reads the beginning of
  // each file. Throws IoError for a file that cannot be read, and the IoError of check_text_file().
  explicit TextFileRows(const std::vector<std::filesystem::path>& files, std::int64_t piece_bytes = kPieceBytes);

  [[nodiscard]] std::int64_t num_parts() const override { return std::ssize(files_); }
  // A file that is not UTF-8 is a row with a problem. Throws IoError for a file that cannot be read.
  void read(std::int64_t part, const std::function<void(const TextRow&)>& each) const override;
  [[nodiscard]] std::int64_t num_pieces(std::int64_t part) const override;
  // The first call for a file checks the whole file. If the file is not UTF-8, the first piece has the row with the
  // problem, and the other pieces have no row.
  void read_piece(std::int64_t part, std::int64_t piece, const NextCut& next_cut,
                  const std::function<void(const TextRow&)>& each) const override;
  [[nodiscard]] std::string place(std::int64_t part, std::int64_t row) const override;
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string fingerprint() const override;
  [[nodiscard]] std::string content_fingerprint() const override;

 private:
  // The cached result of the UTF-8 check of a file.
  struct Look {
    std::once_flag once;
    std::string problem;
  };
  [[nodiscard]] const std::string& problem_of(std::int64_t part, std::string_view text) const;

  std::vector<std::filesystem::path> files_;
  std::vector<std::int64_t> num_pieces_;
  std::vector<std::unique_ptr<Look>> looks_;
  std::int64_t piece_bytes_;
};

}  // namespace d9d
