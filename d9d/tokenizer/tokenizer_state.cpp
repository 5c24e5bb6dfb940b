#include "d9d/tokenizer/tokenizer_state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/tokenizer/bpe/byte_alphabet.h"

namespace d9d::detail {
namespace {

std::string normalized(const std::vector<NormalForm>& forms, std::string text) {
  for (const NormalForm form : forms) {
    if (!is_normalized(form, text)) text = normalize(form, text).text;
  }
  return text;
}

bool reaches_over_line_breaks(const AddedToken& token) {
  return token.lstrip || token.rstrip || token.content.find('\n') != std::string::npos;
}

std::vector<TokenText> texts_of(const BpeModel& model, const std::vector<AddedToken>& added,
                                const std::vector<NormalForm>& forms) {
  std::vector<TokenText> texts;
  StringMap<bool> special;
  const auto set = [&](TokenId id, std::string token) {
    if (id >= texts.size()) texts.resize(std::size_t{id} + 1);
    texts[id].bytes = from_byte_alphabet(token).value_or(token);
    texts[id].token = std::move(token);
    texts[id].exists = true;
  };
  for (const auto& [token, id] : model.vocabulary()) {
    set(id, token);
    texts[id].bytes_in_words = texts[id].bytes;
  }
  for (const AddedToken& token : added) {
    set(token.id, token.normalized ? normalized(forms, token.content) : token.content);
    if (token.special) special.emplace(token.content, true);
  }
  for (TokenText& text : texts) text.is_special = text.exists && special.contains(text.token);
  return texts;
}

AddedTokenMatcher matcher_of(const std::vector<AddedToken>& added, bool in_normalized_text,
                             const std::vector<NormalForm>& forms, const JsonNode& file) {
  std::vector<AddedToken> tokens;
  std::vector<std::string> contents;
  std::set<std::string> known;
  for (const AddedToken& token : added) {
    if (token.normalized != in_normalized_text) continue;
    tokens.push_back(token);
    contents.push_back(in_normalized_text ? normalized(forms, token.content) : token.content);
    if (!known.insert(contents.back()).second) {
      file.at("added_tokens").refuse("tokens that differ after normalisation", "Remove '" + token.content + "'.");
    }
  }
  return {std::move(tokens), contents};
}

std::unique_ptr<BpeModel> model_of(const JsonNode& file) {
  file.expect_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                    "decoder", "model"});
  if (const auto version = file.find("version"); version && version->string() != "1.0") {
    version->refuse("1.0", "Other versions of the format are not read.");
  }
  for (const std::string_view key : {"truncation", "padding"}) {
    if (const auto value = file.find(key))
      value->refuse("null", "Cut or pad where batches are made, and set it to null.");
  }
  check_decoder(file.at("decoder"));
  return read_model(file.at("model"));
}

}  // namespace

std::unique_ptr<EncodeScratch> ScratchPool::take() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<EncodeScratch>();
  auto scratch = std::move(idle_.back());
  idle_.pop_back();
  return scratch;
}

void ScratchPool::give_back(std::unique_ptr<EncodeScratch> scratch) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(scratch));
}

TokenizerState::TokenizerState(const JsonNode& file)
    : model(model_of(file)),
      normal_forms(read_normalizer(file.find("normalizer"))),
      pre_tokenizer(read_pre_tokenizer(file.at("pre_tokenizer"))),
      post_processor(read_post_processor(file.find("post_processor"))),
      added_in_text({}, {}),
      added_in_normalized_text({}, {}) {
  const std::vector<AddedToken> added = read_added_tokens(file.find("added_tokens"), *model);
  if (!pre_tokenizer.add_prefix_space && std::ranges::none_of(added, reaches_over_line_breaks)) {
    line_cut = pre_tokenizer.line_cut;
  }
  added_in_text = matcher_of(added, false, normal_forms, file);
  added_in_normalized_text = matcher_of(added, true, normal_forms, file);
  tokens = texts_of(*model, added, normal_forms);
  for (const AddedToken& token : added) added_ids.emplace(token.content, token.id);
  for (const auto& ids : {post_processor.before, post_processor.after}) {
    for (const TokenId id : ids) {
      if (id >= tokens.size() || !tokens[id].exists) {
        file.at("post_processor").refuse("a template of tokens that exist", cat("There is no token ", id, "."));
      }
    }
  }
  num_tokens = static_cast<std::size_t>(std::ranges::count(tokens, true, &TokenText::exists));
}

}  // namespace d9d::detail
