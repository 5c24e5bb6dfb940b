#include "d9d/data/text/text_file_rows.h"

#include "d9d/base/check.h"
#include "d9d/base/io/mapped_file.h"
#include "d9d/data/text/file_fingerprint.h"
#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d {

void TextFileRows::read(std::int64_t part, const std::function<void(const TextRow&)>& each) const {
  const MappedFile file(files_[static_cast<std::size_t>(part)]);
  const std::string_view text{reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  if (text.empty()) return each({.problem = "no bytes"});
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
