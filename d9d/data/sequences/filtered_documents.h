// Turns documents into items that fit into a sequence, by rules for documents that are too long or too short. An item
// is a document, or a part of a long one.
//
// Example
//   const FilteredDocuments documents(source, {.max_positions = 2048, .too_long = LongDocuments::kSplit});
//   const TokenSample sample = documents.sample(17);                      // at most 2048 positions
//   log.info("skipped ", documents.counts().too_short);
//
// A document of n tokens has n - 1 positions: all tokens but the last are inputs, all but the first labels. Labels that
// are not among the document's targets() are kIgnoreIndex.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "d9d/data/sequences/long_documents.h"
#include "d9d/data/sequences/token_sample.h"
#include "d9d/data/source/token_documents.h"

namespace d9d {

// What happens to a document of less than two tokens, in which there is nothing to predict.
enum class ShortDocuments {
  kSkip,  // it is left out
  kKeep,  // it becomes a sample with 0 positions
};

struct DocumentRules {
  std::int64_t max_positions = 0;  // maximum number of positions of an item
  LongDocuments too_long = LongDocuments::kRefuse;
  ShortDocuments too_short = ShortDocuments::kSkip;
};

// Output memory for a sample: equal numbers of inputs, labels and positions.
struct SampleSpans {
  std::span<std::int64_t> input_ids;
  std::span<std::int64_t> labels;
  std::span<std::int64_t> position_ids;
};

class FilteredDocuments {
 public:
  struct Counts {
    std::int64_t too_short = 0;        // documents
    std::int64_t too_long = 0;         // documents
    std::int64_t without_targets = 0;  // items in which nothing is predicted, such as a prompt whose answer is cut off
  };

  // Reads the length of each document once. Throws ConfigError unless max_positions >= 1, and, under
  // LongDocuments::kRefuse, IoError that names the first document that is too long. The result may have no items.
  FilteredDocuments(std::shared_ptr<const TokenDocuments> documents, DocumentRules rules);

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] const Counts& counts() const { return counts_; }

  [[nodiscard]] DataDescription describe() const;

  [[nodiscard]] std::int64_t max_positions() const { return rules_.max_positions; }
  // Number of positions of an item; expects 0 <= item < size().
  [[nodiscard]] std::int64_t num_positions(std::int64_t item) const;
  // Returns an item as a sample. Throws the IoError of TokenDocuments::read(). Thread-safe.
  [[nodiscard]] TokenSample sample(std::int64_t item) const;
  // Writes what sample(item) returns into spans of num_positions(item) elements each.
  void read(std::int64_t item, const SampleSpans& sample) const;

 private:
  struct Item {
    std::int64_t document;
    std::int64_t start;  // index of the item's first token in the document
  };
  [[nodiscard]] Item item_at(std::int64_t item) const;
  void add_items_of(std::int64_t document);

  std::shared_ptr<const TokenDocuments> documents_;
  DocumentRules rules_;
  bool has_targets_;
  Counts counts_;
  std::int64_t size_ = 0;
  std::vector<Item> items_;  // empty if each item i begins at the start of document i
};

}  // namespace d9d
