// Documents of tokens: what every view of the data reads, whatever files hold them.
//
// Example
//   std::vector<std::int64_t> tokens(documents.length(17));
//   documents.read(17, /*start=*/0, tokens);
//   const std::string where = documents.place(17);                        // "document 17 of 'corpus.idx'"
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "d9d/data/source/documents_identity.h"

namespace d9d {

// Tokens from `begin` to before `end` of a document.
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Reading is thread-safe, and equal calls give equal results.
class TokenDocuments {
 public:
  TokenDocuments() = default;
  TokenDocuments(const TokenDocuments&) = delete;
  TokenDocuments& operator=(const TokenDocuments&) = delete;
  virtual ~TokenDocuments() = default;

  [[nodiscard]] virtual std::int64_t size() const = 0;
  // Number of tokens; may be 0. This and what follows expects 0 <= document < size().
  [[nodiscard]] virtual std::int64_t length(std::int64_t document) const = 0;
  // Fills `tokens` with the document's from `start` on; expects start + tokens.size() <= length(document). Throws
  // IoError that names file and position if an id is outside the vocabulary.
  virtual void read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const = 0;

  // The tokens that a model learns to predict, as ascending ranges; the others (a prompt, a question) are only read.
  // All, unless the source knows better.
  [[nodiscard]] virtual std::vector<TokenRange> targets(std::int64_t document) const {
    return {{.begin = 0, .end = length(document)}};
  }

  // Whether targets() are less than all tokens of some document.
  [[nodiscard]] virtual bool has_targets() const { return false; }

  // Both for messages: one document, and where all come from ("'a.bin' and 3 more files").
  [[nodiscard]] virtual std::string place(std::int64_t document) const = 0;
  [[nodiscard]] virtual std::string describe() const = 0;

  // What a job compares when it continues; unknown unless the source knows better.
  [[nodiscard]] virtual DocumentsIdentity identity() const { return {}; }
};

// The documents of several sources, one source after the other.
class JoinedDocuments final : public TokenDocuments {
 public:
  // Throws ConfigError if there is no source.
  explicit JoinedDocuments(std::vector<std::shared_ptr<const TokenDocuments>> sources);

  [[nodiscard]] std::int64_t size() const override { return ends_.back(); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override;
  void read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const override;
  [[nodiscard]] std::vector<TokenRange> targets(std::int64_t document) const override;
  [[nodiscard]] bool has_targets() const override;
  [[nodiscard]] std::string place(std::int64_t document) const override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] DocumentsIdentity identity() const override;

 private:
  struct Found {
    const TokenDocuments& source;
    std::int64_t document;
  };
  [[nodiscard]] Found find(std::int64_t document) const;

  std::vector<std::shared_ptr<const TokenDocuments>> sources_;
  std::vector<std::int64_t> ends_;  // by source: the number of documents up to its end
};

}  // namespace d9d
