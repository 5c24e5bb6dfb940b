// Memory-maps the documents that tokenize_rows() has written into a folder.
//
// Example
//   const TokenizedDocuments documents("cache/1f0c...", /*vocabulary_size=*/151936);
//
//   tokens.bin      ids, uint16 or uint32, one document after the other
//   offsets.bin     int64: the index of the first token of each document; then the number of tokens
//   parts.bin       int64: for each part of the rows (TextRows), the number of documents up to its end
//   targets.bin     int32: begin and end of each range of tokens that a model learns to predict, counted from the
//                   document's first token; absent if all tokens are targets
//   target_offsets.bin   int64: the index of the first range of each document; then the number of ranges
//   manifest.json   {"format": 4, "dtype": "uint16", "num_parts": ..., "num_documents": ..., "num_tokens": ...,
//                    "num_targets": ..., "num_skipped": ..., "first_skipped": "line 3 of 'a.jsonl': ...",
//                    "identity": {"tokens": ..., "tokenizer": ..., "vocabulary": ...}}; written last
// All numbers are little-endian.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "d9d/base/io/mapped_file.h"
#include "d9d/data/source/token_documents.h"
#include "d9d/data/source/tokenized_manifest.h"

namespace d9d {

// Names the rows from which the documents were made, for messages.
struct TokenizedOrigin {
  std::string name = {};  // TextRows::name()
  // Returns a name for the row that became document `index` of part `part`.
  std::function<std::string(std::int64_t part, std::int64_t index)> place_of_row = {};
};

class TokenizedDocuments final : public TokenDocuments {
 public:
  // Throws IoError that names the file and the remedy if the folder has no manifest of this format, or if the size of a
  // file differs from the manifest. Without `origin`, place() names the folder and the number of the document.
  TokenizedDocuments(const std::filesystem::path& folder, std::int64_t vocabulary_size, TokenizedOrigin origin = {});

  [[nodiscard]] std::int64_t size() const override { return manifest_.num_documents; }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override;
  void read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const override;
  // Returns the tokens after the prompt of a row, or the tokens that the assistant says in a conversation; for other
  // rows all tokens.
  [[nodiscard]] std::vector<TokenRange> targets(std::int64_t document) const override;
  [[nodiscard]] bool has_targets() const override { return targets_.has_value(); }
  [[nodiscard]] std::string place(std::int64_t document) const override;
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] DataDescription describe() const override;
  [[nodiscard]] DocumentsIdentity identity() const override { return manifest_.identity; }

  [[nodiscard]] const TokenizedManifest& manifest() const { return manifest_; }

 private:
  [[nodiscard]] std::int64_t offset(std::int64_t document) const;

  struct Targets {
    explicit Targets(const std::filesystem::path& folder)
        : ranges(folder / kTargetsFile), offsets(folder / kTargetOffsetsFile) {}
    MappedFile ranges;
    MappedFile offsets;
  };

  std::filesystem::path folder_;
  std::int64_t vocabulary_size_;
  TokenizedManifest manifest_;
  MappedFile tokens_;
  MappedFile offsets_;
  MappedFile parts_;
  std::optional<Targets> targets_;
  TokenizedOrigin origin_;
};

}  // namespace d9d
