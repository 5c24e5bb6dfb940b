// What a tokenizer has after its file was read.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "d9d/tokenizer/added/added_tokens.h"
#include "d9d/tokenizer/bpe/bpe_model.h"
#include "d9d/tokenizer/bpe/word_cache.h"
#include "d9d/tokenizer/format/tokenizer_json.h"
#include "d9d/tokenizer/tokenizer_identity.h"

namespace d9d::detail {

// What one call of encode works with.
struct EncodeScratch {
  WordCache cache;
  MergeScratch merges;
  std::vector<Span> words;
  std::vector<Span> other_words;
  std::vector<AddedMatch> matches;
  std::vector<AddedMatch> matches_in_piece;
};

// Scratch is taken and given back, so that the words that one call cached help the next, on whatever thread.
class ScratchPool {
 public:
  [[nodiscard]] std::unique_ptr<EncodeScratch> take();
  void give_back(std::unique_ptr<EncodeScratch> scratch);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> idle_;
};

// How a token is written and what it decodes to.
struct TokenText {
  std::string token;  // as id_to_token gives it: in the byte alphabet, of added tokens the normalised content
  std::string bytes;
  std::string bytes_in_words;  // those of the vocabulary, also where an added token of the same id decodes to others
  bool exists = false;
  bool is_special = false;
};

struct TokenizerState {
  TokenizerState(const JsonNode& file);

  std::unique_ptr<BpeModel> model;
  std::vector<NormalForm> normal_forms;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  LineCut line_cut = LineCut::kNone;  // of whole texts
  AddedTokenMatcher added_in_text;    // those that are found before normalisation
  AddedTokenMatcher added_in_normalized_text;
  StringMap<TokenId> added_ids;
  std::vector<TokenText> tokens;  // by id
  std::size_t num_tokens = 0;
  TokenizerIdentity identity = {};
  mutable ScratchPool scratch;
};

}  // namespace d9d::detail
