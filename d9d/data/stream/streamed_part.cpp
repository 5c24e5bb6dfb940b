#include "d9d/data/stream/streamed_part.h"

#include <algorithm>
#include <string>
#include <utility>

#include "d9d/data/text/encode_row.h"

namespace d9d {

namespace {

class PartDocuments final : public TokenDocuments {
 public:
  PartDocuments(const TextRows& rows, const TextEncoder& encoder, std::int64_t part, const TokenizeOptions& options)
      : rows_(rows), part_(part) {
    rows.read(part, [&](const TextRow& row) {
      std::string problem;
      auto document = encode_row(rows, part, row, encoder, options, problem);
      if (!document) {
        num_skipped_ += row.num_rows;
        return;
      }
      documents_.push_back(std::move(*document));
      rows_of_documents_.push_back(row.row);
    });
  }

  [[nodiscard]] std::int64_t size() const override { return std::ssize(documents_); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return std::ssize(documents_[static_cast<std::size_t>(document)].tokens);
  }
  void read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const override {
    const auto& stored = documents_[static_cast<std::size_t>(document)].tokens;
    std::copy_n(stored.begin() + start, tokens.size(), tokens.begin());
  }
  [[nodiscard]] std::vector<TokenRange> targets(std::int64_t document) const override {
    const auto& targets = documents_[static_cast<std::size_t>(document)].targets;
    return targets ? *targets : TokenDocuments::targets(document);
  }
  [[nodiscard]] bool has_targets() const override {
    return std::ranges::any_of(documents_, [](const EncodedRow& row) { return row.targets.has_value(); });
  }
  [[nodiscard]] std::string place(std::int64_t document) const override {
    return rows_.place(part_, rows_of_documents_[static_cast<std::size_t>(document)]);
  }
  [[nodiscard]] std::string name() const override { return "a part of the stream"; }

  [[nodiscard]] std::int64_t num_skipped() const { return num_skipped_; }

 private:
  const TextRows& rows_;
  std::int64_t part_;
  std::vector<EncodedRow> documents_;
  std::vector<std::int64_t> rows_of_documents_;
  std::int64_t num_skipped_ = 0;
};

}  // namespace

StreamedPart make_streamed_part(const TextRows& rows, const TextEncoder& encoder, std::int64_t part,
                                const StreamedPartOptions& options) {
  const auto documents = std::make_shared<const PartDocuments>(rows, encoder, part, options.tokenize);
  FilteredDocuments filtered(documents, {.max_positions = options.max_positions, .too_long = options.long_documents});
  if (filtered.size() == 0) return {nullptr, documents->num_skipped()};
  const bool predicts_nothing = filtered.counts().without_targets == filtered.size();
  auto packed = std::make_shared<const PackedDataset>(
      std::move(filtered),
      PackingOptions{.buffer_size = options.buffer_size, .seed = options.seed, .shuffle = options.shuffle});
  return {std::move(packed), documents->num_skipped(), predicts_nothing};
}

}  // namespace d9d
