#include "d9d/data/sequences/token_dataset.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/data/source/match_files.h"

namespace d9d {

TokenDataset::TokenDataset(ConcatenatedTokens tokens, std::int64_t sequence_length)
    : tokens_(std::move(tokens)), sequence_length_(sequence_length) {
  D9D_CHECK(sequence_length >= 1, ConfigError, "[data::TokenDataset] expected sequence_length >= 1, got ",
            sequence_length, ". Set the number of tokens of a training sequence.");
  D9D_CHECK(tokens_.size() > sequence_length, ConfigError, "[data::TokenDataset] expected at least ",
            sequence_length + 1, " tokens (sequence_length + 1), got ", tokens_.size(), " in ",
            tokens_.documents().name(), ". Add files or shorten the sequences.");
}

TokenSample TokenDataset::get(std::int64_t index) const {
  const at::Tensor tokens = at::empty({sequence_length_ + 1}, at::kLong);
  tokens_.read(index * sequence_length_,
               {tokens.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(tokens.numel())});
  return next_token_sample(tokens);
}

DataDescription TokenDataset::describe() const {
  return {.line = cat(counted(size(), "sequence"), " of ", counted(sequence_length_, "position")),
          .inputs = {tokens_.describe()}};
}

std::unique_ptr<TokenDataset> text_dataset(const std::vector<std::string>& patterns, std::int64_t sequence_length) {
  const TokenFormat bytes{.dtype = TokenDtype::kUint8, .vocabulary_size = kByteVocabularySize};
  const auto files = std::make_shared<const TokenCorpus>(match_files(patterns), bytes);
  return std::make_unique<TokenDataset>(ConcatenatedTokens(files, kDocumentSeparator), sequence_length);
}

std::unique_ptr<TokenDataset> token_file_dataset(const std::vector<std::string>& patterns, TokenFormat format,
                                                 std::int64_t sequence_length) {
  const auto files = std::make_shared<const TokenCorpus>(match_files(patterns), format);
  return std::make_unique<TokenDataset>(ConcatenatedTokens(files, std::nullopt), sequence_length);
}

}  // namespace d9d
