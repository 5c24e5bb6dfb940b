#include "d9d/tokenizer/tokenizer_identity.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/tokenizer/bpe/byte_alphabet.h"

namespace d9d {
namespace {

using nlohmann::json;

// A hash of a sequence of texts that depends on where each text ends.
class Hash {
 public:
  void add(std::string_view text) { hash_ = fnv1a(std::string_view("\0", 1), fnv1a(text, hash_)); }
  [[nodiscard]] std::string text() const {
    std::array<char, 17> digits{};
    std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash_));
    return digits.data();
  }

 private:
  std::uint64_t hash_ = fnv1a("");
};

// The value without members that some versions of the tokenizers package omit: defaults, and keys that affect only
// offsets.
json without_defaults(const json& value) {
  if (value.is_array()) {
    json list = json::array();
    for (const json& each : value) list.push_back(without_defaults(each));
    return list;
  }
  if (!value.is_object()) return value;
  json object = json::object();
  for (const auto& [key, each] : value.items()) {
    const bool is_on_by_default = key == "use_regex" || key == "add_prefix_space";
    const bool is_default = each.is_null() || each == "" || each == is_on_by_default;
    if (!is_default && key != "trim_offsets") object[key] = without_defaults(each);
  }
  return object;
}

// The two tokens of a merge, which is a list or a text with a space.
std::pair<std::string, std::string> read_merge(const json& merge) {
  if (merge.is_array()) return {merge.at(0).get<std::string>(), merge.at(1).get<std::string>()};
  const auto& text = merge.get_ref<const std::string&>();
  const std::size_t space = text.find(' ');
  return {text.substr(0, space), space == std::string::npos ? "" : text.substr(space + 1)};
}

// Hashes the added tokens and their matching options. Returns their ids.
std::set<std::int64_t> add_added_tokens(const json& added, Hash& all) {
  std::set<std::int64_t> ids;
  if (!added.is_array()) return ids;
  for (const json& token : added) {
    ids.insert(token.at("id").get<std::int64_t>());
    all.add(cat(token.at("id").get<std::int64_t>(), " ", token.at("content").get_ref<const std::string&>()));
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
      if (token.value(key, false)) all.add(key);
    }
  }
  return ids;
}

bool is_one_character(std::string_view token) {
  return std::ranges::count_if(token, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }) == 1;
}

}  // namespace

TokenizerIdentity identity_of_tokenizer(const json& file) {
  const json& model = file.at("model");
  Hash vocabulary, all;
  const std::set<std::int64_t> added_ids = add_added_tokens(file.value("added_tokens", json()), all);
  std::set<std::string> merged;
  for (const json& merge : model.value("merges", json::array())) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = read_merge(merge);
    all.add(cat(left, " ", right));
    merged.insert(left + right);
  }
  const bool takes_whole_words = model.value("ignore_merges", json()) == true;
  for (const auto& [token, id] : model.at("vocab").items()) {
    const std::string text = cat(id.get<std::int64_t>(), " ", token);
    const bool is_word = takes_whole_words && !added_ids.contains(id.get<std::int64_t>());
    if (is_one_character(token) || merged.contains(token) || is_word) vocabulary.add(text);
    all.add(text);
  }
  json rules = {{"ignore_merges", model.value("ignore_merges", json())}};
  for (const char* key : {"normalizer", "pre_tokenizer"}) rules[key] = file.value(key, json());
  all.add(without_defaults(rules).dump());
  return {.vocabulary = vocabulary.text(), .all = all.text()};
}

std::string byte_tokenizer_json() {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[detail::to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  }
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  nlohmann::ordered_json file = {
      {"version", "1.0"},      {"truncation", nullptr},  {"padding", nullptr},        {"added_tokens", json::array()},
      {"normalizer", nullptr}, {"pre_tokenizer", bytes}, {"post_processor", nullptr}, {"decoder", bytes}};
  file["model"] = {{"type", "BPE"},       {"dropout", nullptr},     {"unk_token", nullptr},
                   {"fuse_unk", false},   {"byte_fallback", false}, {"ignore_merges", false},
                   {"vocab", vocabulary}, {"merges", json::array()}};
  return file.dump(2) + "\n";
}

TokenizerIdentity byte_tokenizer_identity() { return identity_of_tokenizer(json::parse(byte_tokenizer_json())); }

}  // namespace d9d
