// Concatenates documents and splits them into sequences of one length for next-token prediction.
//
// Example
//   const auto dataset = text_dataset({"corpus/*.txt"}, 1024);           // bytes as tokens: vocabulary 256
//   const TokenSample sample = dataset->get(17);                         // tokens 17*1024 .. 18*1024 of the corpus
//
// Sample i reads tokens [i*S, i*S + S]: S inputs and, shifted by one, S labels. Adjacent samples share one token, so
// that every token in them, except the first of the corpus, is predicted once. Tokens at the end of the corpus that do
// not fill a sequence are dropped. A sequence may begin within a document and contain several documents, which attend
// to each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "d9d/data/sequences/concatenated_tokens.h"
#include "d9d/data/sequences/dataset.h"
#include "d9d/data/sequences/token_sample.h"
#include "d9d/data/source/token_corpus.h"

namespace d9d {

class TokenDataset final : public Dataset<TokenSample> {
 public:
  // Throws ConfigError unless sequence_length >= 1 and there are at least sequence_length + 1 tokens.
  TokenDataset(ConcatenatedTokens tokens, std::int64_t sequence_length);

  [[nodiscard]] std::int64_t size() const override { return (tokens_.size() - 1) / sequence_length_; }
  // Returns a sequence of S = sequence_length positions. Throws IoError if one of its ids is outside the vocabulary.
  [[nodiscard]] TokenSample get(std::int64_t index) const override;
  [[nodiscard]] DataDescription describe() const override;

 private:
  ConcatenatedTokens tokens_;
  std::int64_t sequence_length_;
};

// text_dataset() makes a dataset of text files, whose bytes are tokens 0..255. Each file is a document; files are in
// path order, with a token 0 between them.
inline constexpr std::int64_t kByteVocabularySize = 256;
inline constexpr std::int64_t kDocumentSeparator = 0;
[[nodiscard]] std::unique_ptr<TokenDataset> text_dataset(const std::vector<std::string>& patterns,
                                                         std::int64_t sequence_length);

// Makes a dataset of files of token ids in the given `format`, in path order. Document separators, if any, are part of
// the files.
[[nodiscard]] std::unique_ptr<TokenDataset> token_file_dataset(const std::vector<std::string>& patterns,
                                                               TokenFormat format, std::int64_t sequence_length);

}  // namespace d9d
