#include "d9d/data/text/text_file_rows.h"

#include "d9d/base/check.h"
#include "d9d/base/io/mapped_file.h"
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

TextFileRows::TextFileRows(const std::vector<std::filesystem::path>& files) {
  for (const std::filesystem::path& path : files) {
    check_text_file(path);
    if (std::filesystem::file_size(path) > 0) files_.push_back(path);
  }
}

void TextFileRows::read(std::int64_t part, const std::function<void(const TextRow&)>& each) const {
  const MappedFile file(files_[static_cast<std::size_t>(part)]);
  const std::string_view text{reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  const auto invalid = invalid_utf8_at(text);
  if (invalid) return each({.problem = cat("bytes that are not UTF-8, from byte ", *invalid, " on")});
  each({.columns = {text}});
}

std::string TextFileRows::place(std::int64_t part, std::int64_t /*row*/) const {
  return cat("'", files_[static_cast<std::size_t>(part)].string(), "'");
}

std::string TextFileRows::fingerprint() const { return "text\n" + file_fingerprint(files_); }
std::string TextFileRows::content_fingerprint() const { return "text\n" + d9d::content_fingerprint(files_); }

}  // namespace d9d
