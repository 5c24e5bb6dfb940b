// A dataset of pairs of answers, each behind their common prompt, for training on preferences.
//
// Example
//   const auto dataset = std::make_shared<const PairDataset>(documents, 1024, LongPairs::kSkip);  // of PairEncoder
//   const TokenBatch batch = collate_pairs(std::vector{dataset->get(0), dataset->get(1)}, 1);     // 4 rows
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "d9d/data/sequences/dataset.h"
#include "d9d/data/sequences/token_sample.h"
#include "d9d/data/source/token_documents.h"

namespace d9d {

struct PairSample {
  TokenSample chosen;    // prompt and chosen answer; labels of the prompt are kIgnoreIndex
  TokenSample rejected;  // prompt and rejected answer likewise
};
void make_padding(PairSample& pair);

// Stacks the 2 P sequences of P pairs: row 2 p is the chosen answer of pair p, row 2 p + 1 the rejected one. Padded as
// collate_padded_to_multiple() does.
[[nodiscard]] TokenBatch collate_pairs(std::span<const PairSample> pairs, std::int64_t multiple);

// What happens to a pair of which one sequence has more positions than it may.
enum class LongPairs : std::uint8_t {
  kRefuse,  // the constructor throws IoError that names it
  kSkip,    // it is left out and counted
};

class PairDataset final : public Dataset<PairSample> {
 public:
  // documents: as PairEncoder encodes them. Throws IoError for another document, and ConfigError if no pair fits into
  // max_positions.
  PairDataset(std::shared_ptr<const TokenDocuments> documents, std::int64_t max_positions, LongPairs too_long);

  [[nodiscard]] std::int64_t size() const override { return std::ssize(pairs_); }
  [[nodiscard]] PairSample get(std::int64_t index) const override;
  [[nodiscard]] DataDescription describe() const override;

 private:
  struct Pair {
    std::int64_t document, prompt, chosen, rejected;  // the last three: number of tokens
  };
  [[nodiscard]] Pair pair_of(std::int64_t document) const;
  [[nodiscard]] TokenSample sample(const Pair& pair, std::int64_t begin, std::int64_t count) const;

  std::shared_ptr<const TokenDocuments> documents_;
  std::int64_t max_positions_;
  std::vector<Pair> pairs_;
  std::int64_t num_too_long_ = 0;
};

}  // namespace d9d
