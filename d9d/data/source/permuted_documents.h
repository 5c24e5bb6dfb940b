// Presents documents in another order.
//
// Example
//   const PermutedDocuments shuffled(documents, numpy_permutation(documents->size(), 42));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "d9d/data/source/token_documents.h"

namespace d9d {

class PermutedDocuments final : public TokenDocuments {
 public:
  // Document i is document order[i] of `documents`.
  PermutedDocuments(std::shared_ptr<const TokenDocuments> documents, std::vector<std::int64_t> order)
      : documents_(std::move(documents)), order_(std::move(order)) {}

  [[nodiscard]] std::int64_t size() const override { return std::ssize(order_); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return documents_->length(order_[document]);
  }
  void read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const override {
    documents_->read(order_[document], start, tokens);
  }
  [[nodiscard]] std::vector<TokenRange> targets(std::int64_t document) const override {
    return documents_->targets(order_[document]);
  }
  [[nodiscard]] bool has_targets() const override { return documents_->has_targets(); }
  [[nodiscard]] std::string place(std::int64_t document) const override { return documents_->place(order_[document]); }
  [[nodiscard]] std::string name() const override { return documents_->name(); }
  [[nodiscard]] DataDescription describe() const override {
    return {.line = "shuffled once", .inputs = {documents_->describe()}};
  }
  [[nodiscard]] DocumentsIdentity identity() const override { return documents_->identity(); }

 private:
  std::shared_ptr<const TokenDocuments> documents_;
  std::vector<std::int64_t> order_;
};

// Returns the documents in the order of numpy_permutation().
[[nodiscard]] std::shared_ptr<const TokenDocuments> shuffled_as_numpy(std::shared_ptr<const TokenDocuments> documents,
                                                                      std::uint64_t seed);

}  // namespace d9d
