#include "d9d/data/view/token_dataset.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/data/source/match_files.h"

namespace d9d {

TokenDataset::TokenDataset(TokenCorpus corpus, std::int64_t sequence_length)
    : corpus_(std::move(corpus)), sequence_length_(sequence_length) {
  D9D_CHECK(sequence_length >= 1, ConfigError, "[data::TokenDataset] expected sequence_length >= 1, got ",
            sequence_length, ". Set the number of tokens of a training sequence.");
  D9D_CHECK(corpus_.size() > sequence_length, ConfigError, "[data::TokenDataset] expected at least ",
            sequence_length + 1, " tokens (sequence_length + 1), got ", corpus_.size(), " in ", corpus_.describe(),
            ". Add files or shorten the sequences.");
}

TokenSample TokenDataset::get(std::int64_t index) const {
  const at::Tensor tokens = at::empty({sequence_length_ + 1}, at::kLong);
  corpus_.read(index * sequence_length_,
               {tokens.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(tokens.numel())});
  return next_token_sample(tokens);
}

std::unique_ptr<TokenDataset> text_dataset(const std::vector<std::string>& patterns, std::int64_t sequence_length) {
  return token_file_dataset(
      patterns, {.dtype = TokenDtype::kUint8, .vocabulary_size = kByteVocabularySize, .separator = kDocumentSeparator},
      sequence_length);
}

std::unique_ptr<TokenDataset> token_file_dataset(const std::vector<std::string>& patterns, TokenFormat format,
                                                 std::int64_t sequence_length) {
  return std::make_unique<TokenDataset>(TokenCorpus(match_files(patterns), format), sequence_length);
}

}  // namespace d9d
