// Concatenates the tokens of all documents into one sequence that is read by token index.
//
// Example
//   const ConcatenatedTokens corpus(documents, /*separator=*/{});
//   std::vector<std::int64_t> tokens(1025);
//   corpus.read(4096, tokens);                                                // across the ends of documents
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "d9d/data/source/token_documents.h"

namespace d9d {

class ConcatenatedTokens {
 public:
  // `separator`: a token between two documents; unset: documents follow each other directly. The constructor reads the
  // length of each document once.
  ConcatenatedTokens(std::shared_ptr<const TokenDocuments> documents, std::optional<std::int64_t> separator);

  // Number of tokens, separators included.
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] const TokenDocuments& documents() const { return *documents_; }

  [[nodiscard]] DataDescription describe() const;

  // Fills `tokens` from token `start` on; expects start + tokens.size() <= size(). Thread-safe. Throws the errors of
  // TokenDocuments::read().
  void read(std::int64_t start, std::span<std::int64_t> tokens) const;

 private:
  std::shared_ptr<const TokenDocuments> documents_;
  std::optional<std::int64_t> separator_;
  std::vector<std::int64_t> marks_;  // index of the first token of every kDocumentsPerMark-th document
  std::int64_t size_ = 0;
};

}  // namespace d9d
