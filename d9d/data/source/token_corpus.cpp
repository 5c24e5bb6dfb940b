#include "d9d/data/source/token_corpus.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "d9d/base/check.h"

namespace d9d {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read as they are");

std::int64_t bytes_per_token(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::kUint8:
      return 1;
    case TokenDtype::kUint16:
      return 2;
    case TokenDtype::kUint32:
      return 4;
  }
  D9D_ASSERT(false, "token dtype ", static_cast<int>(dtype));
}

template <class Stored>
void widen(const std::byte* source, std::span<std::int64_t> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    Stored token;
    std::memcpy(&token, source + i * sizeof(Stored), sizeof(Stored));
    tokens[i] = token;
  }
}

}  // namespace

TokenCorpus::TokenCorpus(const std::vector<std::filesystem::path>& files, TokenFormat format) : format_(format) {
  const std::int64_t separator = format.separator.value_or(0);
  D9D_CHECK(separator >= 0 && separator < format.vocabulary_size, ConfigError,
            "[data::TokenCorpus] expected 0 <= separator < vocabulary_size = ", format.vocabulary_size, ", got ",
            separator, ". Change one of the two.");
  const std::int64_t token_bytes = bytes_per_token(format.dtype);
  for (const std::filesystem::path& path : files) {
    auto mapping = std::make_unique<MappedFile>(path);
    const auto num_bytes = static_cast<std::int64_t>(mapping->bytes().size());
    D9D_CHECK(num_bytes > 0, IoError, "[data::TokenCorpus] expected tokens in '", path.string(),
              "', got an empty file. Remove it from the list.");
    D9D_CHECK(num_bytes % token_bytes == 0, IoError, "[data::TokenCorpus] expected '", path.string(),
              "' to hold whole tokens of ", token_bytes, " bytes, got ", num_bytes,
              " bytes. Check the dtype, or write the file again.");
    if (!files_.empty() && format.separator) ++size_;
    files_.push_back({path, std::move(mapping), size_, num_bytes / token_bytes});
    size_ += files_.back().num_tokens;
  }
}

std::string TokenCorpus::describe() const {
  if (files_.empty()) return "no file";
  const std::string first = "'" + files_.front().path.string() + "'";
  return files_.size() == 1 ? first : cat(first, " and ", files_.size() - 1, " more files");
}

void TokenCorpus::read(std::int64_t start, std::span<std::int64_t> tokens) const {
  D9D_ASSERT(start >= 0 && start + std::ssize(tokens) <= size_, "tokens ", start, "+", tokens.size(), " of ", size_);
  auto file = std::prev(std::upper_bound(files_.begin(), files_.end(), start,
                                         [](std::int64_t token, const File& other) { return token < other.start; }));
  for (; !tokens.empty(); ++file) {
    const std::int64_t position = start - file->start;
    const std::int64_t count = std::clamp<std::int64_t>(file->num_tokens - position, 0, std::ssize(tokens));
    if (count > 0) read_file(*file, position, tokens.first(count));
    tokens = tokens.subspan(count);
    start += count;
    if (tokens.empty() || !format_.separator) continue;
    tokens.front() = *format_.separator;
    tokens = tokens.subspan(1);
    ++start;
  }
}

void TokenCorpus::read_file(const File& file, std::int64_t position, std::span<std::int64_t> tokens) const {
  const std::byte* source = file.mapping->bytes().data() + position * bytes_per_token(format_.dtype);
  switch (format_.dtype) {
    case TokenDtype::kUint8:
      widen<std::uint8_t>(source, tokens);
      break;
    case TokenDtype::kUint16:
      widen<std::uint16_t>(source, tokens);
      break;
    case TokenDtype::kUint32:
      widen<std::uint32_t>(source, tokens);
      break;
  }
  const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                [this](std::int64_t token) { return token >= format_.vocabulary_size; });
  D9D_CHECK(bad == tokens.end(), IoError,
            "[data::TokenCorpus] expected token ids below vocabulary_size = ", format_.vocabulary_size, ", got ", *bad,
            " at token ", position + (bad - tokens.begin()), " of '", file.path.string(),
            "'. Check the dtype and which tokenizer wrote the file.");
}

}  // namespace d9d
