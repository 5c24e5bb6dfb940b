// Flat token files: unsigned or signed little-endian integers, one after the other, without a header. Files are
// memory-mapped, not loaded.
//
// Example
//   const TokenCorpus corpus(match_files({"corpus/*.bin"}), {.dtype = TokenDtype::kUint16, .vocabulary_size = 50257});
//   std::vector<std::int64_t> tokens(1025);
//   corpus.read(/*document=*/0, /*start=*/4096, tokens);                  // of the first file
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "d9d/base/io/mapped_file.h"
#include "d9d/data/source/token_documents.h"
#include "d9d/data/source/token_dtype.h"

namespace d9d {

struct TokenFormat {
  TokenDtype dtype = TokenDtype::kUint16;
  std::int64_t vocabulary_size = 0;  // ids are 0..vocabulary_size-1
  // The token that ends each document and belongs to it. If set, the constructor reads all files once to find where
  // documents end. Unset: each file is one document.
  std::optional<std::int64_t> end_of_document = {};
  TokenizerIdentity tokenizer = {};  // of the tokenizer that wrote the ids, if it is known
};

class TokenCorpus final : public TokenDocuments {
 public:
  // Throws IoError that names the file if a file is empty, ends within a token, has another format, or looks like ids
  // with twice as many bytes as the dtype. Throws ConfigError if there is no file, or unless 0 <= end_of_document <
  // vocabulary_size.
  TokenCorpus(const std::vector<std::filesystem::path>& files, TokenFormat format);

  [[nodiscard]] std::int64_t size() const override { return std::ssize(starts_) - 1; }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override;
  // Throws IoError for an id outside the vocabulary; the error names file, position in the file, id and vocabulary
  // size.
  void read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const override;
  [[nodiscard]] std::string place(std::int64_t document) const override;
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] DocumentsIdentity identity() const override;

 private:
  struct File {
    std::filesystem::path path;
    std::unique_ptr<MappedFile> mapping;
    std::int64_t start;  // index of its first token, counted over all files
    std::int64_t num_tokens;
  };
  void check_width(const File& file) const;
  void find_documents(const File& file);
  [[nodiscard]] const File& file_at(std::int64_t token) const;
  [[nodiscard]] std::vector<std::filesystem::path> paths() const;

  TokenFormat format_;
  std::vector<File> files_;
  std::vector<std::int64_t> starts_;  // index of each document's first token over all files; then the number of tokens
};

}  // namespace d9d
