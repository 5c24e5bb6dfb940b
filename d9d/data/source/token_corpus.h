// A concatenation of token files, addressed by token. Files are mapped, not loaded.
//
// Example
//   const TokenCorpus corpus(match_files({"corpus/*.bin"}), {.dtype = TokenDtype::kUint16, .vocabulary_size = 50257});
//   std::vector<std::int64_t> tokens(1025);
//   corpus.read(4096, tokens);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "d9d/base/io/mapped_file.h"
#include "d9d/data/config.h"

namespace d9d {

// Files hold unsigned little-endian integers, one after the other, without a header.
struct TokenFormat {
  TokenDtype dtype = TokenDtype::kUint16;
  std::int64_t vocabulary_size = 0;            // ids are 0..vocabulary_size-1
  std::optional<std::int64_t> separator = {};  // a token inserted between two files; unset: files follow directly
};

class TokenCorpus {
 public:
  // Throws IoError that names a file that is empty or ends within a token, ConfigError unless 0 <= separator <
  // vocabulary.
  TokenCorpus(const std::vector<std::filesystem::path>& files, TokenFormat format);

  // "'a.bin'" or "'a.bin' and 3 more files", for error messages.
  [[nodiscard]] std::string describe() const;

  // Number of tokens, separators included.
  [[nodiscard]] std::int64_t size() const { return size_; }

  // Fills `tokens` with the tokens from `start` on; expects start + tokens.size() <= size(). Thread-safe. Throws
  // IoError that names file, position, id and vocabulary size if an id is outside the vocabulary.
  void read(std::int64_t start, std::span<std::int64_t> tokens) const;

 private:
  struct File {
    std::filesystem::path path;
    std::unique_ptr<MappedFile> mapping;
    std::int64_t start;  // in the corpus
    std::int64_t num_tokens;
  };
  void read_file(const File& file, std::int64_t position, std::span<std::int64_t> tokens) const;

  TokenFormat format_;
  std::vector<File> files_;
  std::int64_t size_ = 0;
};

}  // namespace d9d
