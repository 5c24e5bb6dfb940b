#include "d9d/data/source/token_corpus.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/data/description/data_description.h"
#include "d9d/data/text/file_fingerprint.h"
#include "d9d/data/text/file_form.h"

namespace d9d {

TokenCorpus::TokenCorpus(const std::vector<std::filesystem::path>& files, TokenFormat format) : format_(format) {
  const std::int64_t end = format.end_of_document.value_or(0);
  D9D_CHECK(end >= 0 && end < format.vocabulary_size, ConfigError,
            "[data::TokenCorpus] expected 0 <= end_of_document < vocabulary_size = ", format.vocabulary_size, ", got ",
            end, ". Change one of the two.");
  D9D_CHECK(!files.empty(), ConfigError, "[data::TokenCorpus] expected at least one file, got none. Name the files.");
  const std::int64_t token_bytes = bytes_per_token(format.dtype);
  std::int64_t num_tokens = 0;
  for (const std::filesystem::path& path : files) {
    if (const auto form = foreign_format(first_bytes(path))) {
      throw IoError(cat("[data::TokenCorpus] expected token ids in '", path.string(), "', got a file that is ",
                        form->is, ". ", form->remedy, "."));
    }
    auto mapping = std::make_unique<MappedFile>(path);
    const auto num_bytes = static_cast<std::int64_t>(mapping->bytes().size());
    D9D_CHECK(num_bytes > 0, IoError, "[data::TokenCorpus] expected tokens in '", path.string(),
              "', got an empty file. Remove it from the list.");
    D9D_CHECK(num_bytes % token_bytes == 0, IoError, "[data::TokenCorpus] expected '", path.string(),
              "' to hold whole tokens of ", token_bytes, " bytes, got ", num_bytes,
              " bytes. Check the dtype, or write the file again.");
    files_.push_back({path, std::move(mapping), num_tokens, num_bytes / token_bytes});
    check_width(files_.back());
    find_documents(files_.back());
    num_tokens += files_.back().num_tokens;
  }
  starts_.push_back(num_tokens);
}

// Throws IoError if the file looks like ids with twice as many bytes as the dtype. The upper halves of such ids, 0
// except for the largest ids, would appear as every second token.
void TokenCorpus::check_width(const File& file) const {
  constexpr std::int64_t kFewest = 64, kLooksAt = 4096;
  const std::int64_t num_bits = 8 * bytes_per_token(format_.dtype);
  if (file.num_tokens < kFewest || num_bits == 8 || num_bits == 64) return;  // single bytes may have any value
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(std::min(kLooksAt, file.num_tokens)));
  read_tokens(file.mapping->bytes().data(), format_.dtype, tokens);
  const std::int64_t largest_upper_half = (format_.vocabulary_size - 1) >> num_bits;
  bool looks_wider = true, has_ids = false;
  for (std::size_t i = 0; i + 1 < tokens.size(); i += 2) {
    has_ids |= tokens[i] > largest_upper_half;
    looks_wider &= tokens[i + 1] >= 0 && tokens[i + 1] <= largest_upper_half;
  }
  D9D_CHECK(!(looks_wider && has_ids), IoError, "[data::TokenCorpus] expected ids of dtype ", enum_name(format_.dtype),
            " in '", file.path.string(), "', got at most ", largest_upper_half, " at every second place of the first ",
            tokens.size(), ", as ids of ", num_bits / 4, " bytes have. Set the dtype with which they were written.");
}

void TokenCorpus::find_documents(const File& file) {
  starts_.push_back(file.start);
  if (!format_.end_of_document) return;
  constexpr std::int64_t kTokensAtOnce = 4096;
  std::vector<std::int64_t> tokens;
  for (std::int64_t first = 0; first < file.num_tokens; first += kTokensAtOnce) {
    tokens.resize(static_cast<std::size_t>(std::min(kTokensAtOnce, file.num_tokens - first)));
    read_tokens(file.mapping->bytes().data() + first * bytes_per_token(format_.dtype), format_.dtype, tokens);
    for (std::int64_t i = 0; i < std::ssize(tokens); ++i) {
      const bool is_last = first + i + 1 == file.num_tokens;
      if (tokens[i] == *format_.end_of_document && !is_last) starts_.push_back(file.start + first + i + 1);
    }
  }
}

std::int64_t TokenCorpus::length(std::int64_t document) const { return starts_[document + 1] - starts_[document]; }

const TokenCorpus::File& TokenCorpus::file_at(std::int64_t token) const {
  return *std::prev(std::ranges::upper_bound(files_, token, {}, &File::start));
}

void TokenCorpus::read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const {
  D9D_ASSERT(start >= 0 && start + std::ssize(tokens) <= length(document), "tokens ", start, "+", tokens.size(), " of ",
             length(document));
  if (tokens.empty()) return;
  const File& file = file_at(starts_[document]);
  const std::int64_t position = starts_[document] + start - file.start;
  read_tokens(file.mapping->bytes().data() + position * bytes_per_token(format_.dtype), format_.dtype, tokens);
  const auto bad = first_outside(tokens, format_.vocabulary_size);
  D9D_CHECK(!bad, IoError, "[data::TokenCorpus] expected token ids below vocabulary_size = ", format_.vocabulary_size,
            ", got ", tokens[*bad], " at token ", position + *bad, " of '", file.path.string(),
            "'. Check the dtype and which tokenizer wrote the file.");
}

std::string TokenCorpus::place(std::int64_t document) const {
  const File& file = file_at(starts_[document]);
  return cat("the document at token ", starts_[document] - file.start, " of '", file.path.string(), "'");
}

std::vector<std::filesystem::path> TokenCorpus::paths() const {
  std::vector<std::filesystem::path> paths;
  for (const File& file : files_) paths.push_back(file.path);
  return paths;
}

DocumentsIdentity TokenCorpus::identity() const {
  return {.tokens = hash_text(cat(enum_name(format_.dtype), "\n", content_fingerprint(paths()))),
          .tokenizer = format_.tokenizer};
}

std::string TokenCorpus::name() const { return name_of_files(paths()); }

}  // namespace d9d
