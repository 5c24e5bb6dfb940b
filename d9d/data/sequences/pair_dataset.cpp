#include "d9d/data/sequences/pair_dataset.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {

void make_padding(PairSample& pair) {
  make_padding(pair.chosen);
  make_padding(pair.rejected);
}

TokenBatch collate_pairs(std::span<const PairSample> pairs, std::int64_t multiple) {
  std::vector<TokenSample> rows;
  for (const PairSample& pair : pairs) {
    rows.push_back(pair.chosen);
    rows.push_back(pair.rejected);
  }
  return collate_padded_to_multiple(rows, multiple);
}

PairDataset::PairDataset(std::shared_ptr<const TokenDocuments> documents, std::int64_t max_positions,
                         LongPairs too_long)
    : documents_(std::move(documents)), max_positions_(max_positions) {
  for (std::int64_t document = 0; document < documents_->size(); ++document) {
    const Pair pair = pair_of(document);
    const std::int64_t longest = pair.prompt + std::max(pair.chosen, pair.rejected);
    if (longest - 1 <= max_positions) {
      pairs_.push_back(pair);
      continue;
    }
    D9D_CHECK(too_long == LongPairs::kSkip, IoError, "[data::PairDataset] expected prompts and answers of at most ",
              max_positions, " positions and their last label, got ", longest, " tokens in ",
              documents_->place(document), ". Lengthen the sequences, or skip such pairs.");
    ++num_too_long_;
  }
  D9D_CHECK(!pairs_.empty(), ConfigError, "[data::PairDataset] expected a pair of at most ", max_positions,
            " positions, got none among the ", documents_->size(), " of ", documents_->name(),
            ". Check the files, or the length of sequences.");
}

PairDataset::Pair PairDataset::pair_of(std::int64_t document) const {
  const std::vector<TokenRange> targets = documents_->targets(document);
  const bool is_pair = documents_->has_targets() && targets.size() == 2 && targets[0].begin > 0 &&
                       targets[0].end == targets[1].begin && targets[1].end == documents_->length(document);
  D9D_CHECK(is_pair, IoError, "[data::PairDataset] expected a prompt and two answers, got ", targets.size(),
            " ranges of targets in ", documents_->place(document), ". Read rows of pairs.");
  return {.document = document,
          .prompt = targets[0].begin,
          .chosen = targets[0].end - targets[0].begin,
          .rejected = targets[1].end - targets[1].begin};
}

TokenSample PairDataset::sample(const Pair& pair, std::int64_t begin, std::int64_t count) const {
  const at::Tensor tokens = at::empty({pair.prompt + count}, at::kLong);
  const std::span all(tokens.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(tokens.numel()));
  const auto num_prompt = static_cast<std::size_t>(pair.prompt);
  documents_->read(pair.document, 0, all.first(num_prompt));
  documents_->read(pair.document, begin, all.subspan(num_prompt));
  TokenSample sample = next_token_sample(tokens);
  sample.labels = sample.labels.clone();
  sample.labels.narrow(0, 0, pair.prompt - 1).fill_(kIgnoreIndex);
  return sample;
}

PairSample PairDataset::get(std::int64_t index) const {
  const Pair& pair = pairs_[static_cast<std::size_t>(index)];
  return {.chosen = sample(pair, pair.prompt, pair.chosen),
          .rejected = sample(pair, pair.prompt + pair.chosen, pair.rejected)};
}

DataDescription PairDataset::describe() const {
  std::string line = cat(counted(size(), "pair"), " of answers, each with its prompt of at most ",
                         counted(max_positions_, "position"));
  if (num_too_long_ > 0) line += cat(", ", num_too_long_, " too long: skip");
  return {.line = std::move(line), .inputs = {documents_->describe()}};
}

}  // namespace d9d
