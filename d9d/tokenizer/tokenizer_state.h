// The state of a tokenizer after its file was read.
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

// Working memory of one call of encode().
struct EncodeScratch {
  WordCache cache;
  MergeScratch merges;
  std::vector<Span> words;
  std::vector<Span> other_words;
  std::vector<AddedMatch> matches;
  std::vector<AddedMatch> matches_in_piece;
};

// Lends working memory to calls, so that words that one call has cached are reused by later calls on any thread.
class ScratchPool {
 public:
  [[nodiscard]] std::unique_ptr<EncodeScratch> take();
  void give_back(std::unique_ptr<EncodeScratch> scratch);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> idle_;
};

// The notation of a token, and the bytes that it decodes to.
struct TokenText {
  std::string token;  // as id_to_token() returns it: in the byte alphabet, or the normalised content of an added token
  std::string bytes;
  std::string bytes_in_words;  // by the vocabulary, even if an added token with the same id decodes differently
  bool exists = false;
  bool is_special = false;
};

struct TokenizerState {
  TokenizerState(const JsonNode& file);

  std::unique_ptr<BpeModel> model;
  std::vector<NormalForm> normal_forms;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  LineCut line_cut = LineCut::kNone;  // for whole texts
  AddedTokenMatcher added_in_text;    // searched for before normalisation
  AddedTokenMatcher added_in_normalized_text;
  StringMap<TokenId> added_ids;
  std::vector<TokenText> tokens;  // by id
  std::size_t num_tokens = 0;
  TokenizerIdentity identity = {};
  mutable ScratchPool scratch;
};

}  // namespace d9d::detail
