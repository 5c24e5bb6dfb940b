#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/tokenizer/format/tokenizer_json.h"

namespace d9d::detail {
namespace {

constexpr TokenId kMostIds = TokenId{1} << 24;  // limits memory: tables have an entry for each id up to the highest

StringMap<TokenId> read_vocabulary(const JsonNode& vocab) {
  if (!vocab.json().is_object()) vocab.refuse("an object of tokens and ids", "Only models of kind BPE are read.");
  StringMap<TokenId> vocabulary;
  vocabulary.reserve(vocab.json().size());
  std::unordered_map<TokenId, std::string_view> token_of;
  token_of.reserve(vocab.json().size());
  for (const auto& [token, json] : vocab.json().items()) {
    const bool is_id = json.is_number_unsigned() && json.get<std::uint64_t>() < kMostIds;
    if (!is_id) vocab.at(token).refuse(cat("an id below ", kMostIds), "The file is damaged.");
    const auto id = json.get<TokenId>();
    const auto [entry, is_new] = token_of.emplace(id, token);
    D9D_CHECK(is_new, ConfigError, vocab.place(), "expected one token an id, got '", entry->second, "' and '", token,
              "' with id ", id, ". The file is damaged.");
    vocabulary.emplace(token, id);
  }
  return vocabulary;
}

std::pair<std::string, std::string> read_merge(const JsonNode& merge) {
  constexpr std::string_view kRemedy = "The file is damaged.";
  if (merge.json().is_array()) {
    if (merge.json().size() != 2) merge.refuse("two tokens", kRemedy);
    const auto tokens = merge.elements();
    return {tokens[0].string(), tokens[1].string()};
  }
  const std::string& text = merge.string();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    merge.refuse("two tokens with a space between them", kRemedy);
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<std::pair<std::string, std::string>> read_merges(const JsonNode& node) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (const JsonNode& merge : node.elements()) {
    if (merge.json().is_string() && merge.string().starts_with("#version")) continue;
    merges.push_back(read_merge(merge));
  }
  return merges;
}

void refuse_unless_empty(const JsonNode& model, std::string_view key) {
  const auto value = model.find(key);
  if (value && !value->string().empty())
    value->refuse("no text", "Byte-level BPE has no marks at the borders of words.");
}

}  // namespace

std::unique_ptr<BpeModel> read_model(const JsonNode& model) {
  model.expect_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                     "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto type = model.find("type"); type && type->string() != "BPE") {  // files from 2020 have no type
    type->refuse("BPE", "Other models (WordPiece, Unigram, WordLevel) are not read.");
  }
  if (const auto dropout = model.find("dropout"); dropout && dropout->json() != 0.0) {
    dropout->refuse("none", "Merges that are left out at random are not built. Set it to null.");
  }
  refuse_unless_empty(model, "continuing_subword_prefix");
  refuse_unless_empty(model, "end_of_word_suffix");
  // unk_token, fuse_unk and byte_fallback have no effect, because each byte has a token.
  if (const auto token = model.find("unk_token")) (void)token->string();
  for (const std::string_view key : {"fuse_unk", "byte_fallback"}) {
    if (const auto value = model.find(key)) (void)value->boolean();
  }
  const auto ignore_merges = model.find("ignore_merges");
  return std::make_unique<BpeModel>(read_vocabulary(model.at("vocab")), read_merges(model.at("merges")),
                                    ignore_merges && ignore_merges->boolean(), model.place());
}

std::vector<AddedToken> read_added_tokens(const std::optional<JsonNode>& nodes, const BpeModel& model) {
  std::vector<AddedToken> tokens;
  if (!nodes) return tokens;
  StringMap<bool> contents;
  auto next_id = static_cast<TokenId>(model.vocabulary().size());
  for (const JsonNode& node : nodes->elements()) {
    node.expect_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token = {.content = node.at("content").string(),
                        .id = node.at("id").unsigned_integer(),
                        .single_word = node.at("single_word").boolean(),
                        .lstrip = node.at("lstrip").boolean(),
                        .rstrip = node.at("rstrip").boolean(),
                        .normalized = node.at("normalized").boolean(),
                        .special = node.at("special").boolean()};
    if (token.content.empty() || !contents.emplace(token.content, true).second) {
      node.at("content").refuse("a text that no other added token has", "Remove this entry.");
    }
    // The tokenizers library ignores the id in the file and assigns the ids that follow the vocabulary.
    const auto known = model.vocabulary().find(token.content);
    const TokenId id = known != model.vocabulary().end() ? known->second : next_id++;
    if (token.id != id || id >= kMostIds) {
      node.at("id").refuse(
          cat("id ", id, " for '", token.content, "'"),
          "tokenizers gives the tokens that the vocabulary lacks the ids that follow its size, in order.");
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace d9d::detail
