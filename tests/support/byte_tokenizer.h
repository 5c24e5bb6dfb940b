// A tokenizer.json whose tokens are bytes.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace d9d::test {

// Token i is byte i; "<s>" is 256 and stands in front where special tokens are added. `more` are the special tokens
// from 257 on.
inline std::string byte_tokenizer(const std::vector<std::string>& more = {}) {
  nlohmann::json vocabulary;
  std::int64_t id = 0;
  for (int byte = 0, extra = 0; byte < 256; ++byte) {
    const bool is_printed = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = is_printed ? byte : 256 + extra++;
    std::string text;
    if (code < 0x80) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    }
    vocabulary[text] = id++;
  }
  nlohmann::json added = nlohmann::json::array();
  const auto add = [&](const std::string& text) {
    added.push_back({{"id", id++},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  };
  add("<s>");
  for (const std::string& text : more) add(text);
  const nlohmann::json of_template = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}}},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}}}};
  const nlohmann::json file = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
      {"post_processor", of_template},
      {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
        {"vocab", vocabulary},
        {"merges", nlohmann::json::array()}}}};
  return file.dump();
}

}  // namespace d9d::test
