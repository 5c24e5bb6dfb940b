// The interface of tokenised documents, which every view of the data reads, independently of file formats.
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

#include "d9d/data/description/data_description.h"
#include "d9d/data/source/documents_identity.h"

namespace d9d {

// The tokens [begin, end) of a document.
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Tokenised documents. Reading is thread-safe, and equal calls give equal results.
class TokenDocuments {
 public:
  TokenDocuments() = default;
  TokenDocuments(const TokenDocuments&) = delete;
  TokenDocuments& operator=(const TokenDocuments&) = delete;
  virtual ~TokenDocuments() = default;

  [[nodiscard]] virtual std::int64_t size() const = 0;
  // Number of tokens; may be 0. This and the functions below expect 0 <= document < size().
  [[nodiscard]] virtual std::int64_t length(std::int64_t document) const = 0;
  // Fills `tokens` with the tokens of the document from position `start` on; expects start + tokens.size() <=
  // length(document). Throws IoError that names file and position if an id is outside the vocabulary.
  virtual void read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const = 0;

  // Returns the tokens that a model learns to predict, as ascending ranges; the other tokens (a prompt, a question) are
  // only inputs. By default all tokens are targets.
  [[nodiscard]] virtual std::vector<TokenRange> targets(std::int64_t document) const {
    return {{.begin = 0, .end = length(document)}};
  }

  // Returns whether documents may have tokens that are not targets().
  [[nodiscard]] virtual bool has_targets() const { return false; }

  // For messages: place() names one document, and name() the source of all ("'a.bin' and 3 more files").
  [[nodiscard]] virtual std::string place(std::int64_t document) const = 0;
  [[nodiscard]] virtual std::string name() const = 0;

  // Describes the documents for the log; by default their number and name().
  [[nodiscard]] virtual DataDescription describe() const;

  // Identifies the documents: a job that resumes compares this with the saved identity. Unknown by default.
  [[nodiscard]] virtual DocumentsIdentity identity() const { return {}; }
};

// Concatenates the documents of several sources.
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
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] DocumentsIdentity identity() const override;

 private:
  struct Found {
    const TokenDocuments& source;
    std::int64_t document;
  };
  [[nodiscard]] Found find(std::int64_t document) const;

  std::vector<std::shared_ptr<const TokenDocuments>> sources_;
  std::vector<std::int64_t> ends_;  // by source: the number of documents in it and the sources before it
};

}  // namespace d9d
