#include "d9d/data/text/text_file_rows.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/base/io/mapped_file.h"
#include "d9d/base/rounding.h"
#include "d9d/data/description/data_description.h"
#include "d9d/data/text/file_fingerprint.h"
#include "d9d/data/text/file_form.h"
#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d {

void check_text_file(const std::filesystem::path& path) {
  const std::string bytes = first_bytes(path);
  auto form = foreign_format(bytes);
  if (!form) form = foreign_encoding(bytes);
  if (!form) return;
  throw IoError(cat("[data::check_text_file] expected text in UTF-8, got '", path.string(), "', which is ", form->is,
                    ". ", form->remedy, "."));
}

namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

TextFileRows::TextFileRows(const std::vector<std::filesystem::path>& files, std::int64_t piece_bytes)
    : piece_bytes_(piece_bytes) {
  for (const std::filesystem::path& path : files) {
    check_text_file(path);
    const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
    if (size == 0) continue;
    files_.push_back(path);
    num_pieces_.push_back(divide_up(size, piece_bytes));
    looks_.push_back(std::make_unique<Look>());
  }
}

const std::string& TextFileRows::problem_of(std::int64_t part, std::string_view text) const {
  Look& look = *looks_[static_cast<std::size_t>(part)];
  std::call_once(look.once, [&] {
    const auto invalid = invalid_utf8_at(text);
    if (invalid) look.problem = cat("bytes that are not UTF-8, from byte ", *invalid, " on");
  });
  return look.problem;
}

void TextFileRows::read(std::int64_t part, const std::function<void(const TextRow&)>& each) const {
  const MappedFile file(files_[static_cast<std::size_t>(part)]);
  const std::string& problem = problem_of(part, text_of(file));
  if (!problem.empty()) return each({.problem = problem});
  each({.columns = {text_of(file)}});
}

std::int64_t TextFileRows::num_pieces(std::int64_t part) const { return num_pieces_[static_cast<std::size_t>(part)]; }

void TextFileRows::read_piece(std::int64_t part, std::int64_t piece, const NextCut& next_cut,
                              const std::function<void(const TextRow&)>& each) const {
  const MappedFile file(files_[static_cast<std::size_t>(part)]);
  const std::string_view text = text_of(file);
  const std::string& problem = problem_of(part, text);
  if (!problem.empty()) {
    if (piece == 0) each({.problem = problem});
    return;
  }
  const auto position = [&](std::int64_t i) {
    return std::min(static_cast<std::size_t>(i * piece_bytes_), text.size());
  };
  // If a piece has no split position within its bytes, they belong to the piece before it, which continues to the next
  // split position.
  const std::size_t next = position(piece + 1);
  const std::size_t begin = piece == 0 ? 0 : next_cut(text, position(piece), next);
  if (begin == next) return;
  const std::size_t end = next_cut(text, next, text.size());
  each({.columns = {text.substr(begin, end - begin)}, .begins = piece == 0, .ends = end == text.size()});
}

std::string TextFileRows::place(std::int64_t part, std::int64_t /*row*/) const {
  return cat("'", files_[static_cast<std::size_t>(part)].string(), "'");
}

std::string TextFileRows::name() const { return "text of " + name_of_files(files_); }

std::string TextFileRows::fingerprint() const { return "text\n" + file_fingerprint(files_); }
std::string TextFileRows::content_fingerprint() const { return "text\n" + d9d::content_fingerprint(files_); }

}  // namespace d9d
