// What of a tokenizer.json is not read is refused by file and key.
#include "d9d/tokenizer/format/tokenizer_json.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/tokenizer/tokenizer.h"

#include "tests/support/byte_tokenizer.h"
#include "tests/support/io_faults.h"

namespace d9d::tokenizer_json_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const std::string& text) {
  return test::message_of<ConfigError>([&] { (void)Tokenizer::from_json(text, "a.json"); });
}

struct Refusal {
  const char* pointer;  // of the value that is changed
  const char* value;    // JSON; "": the key is removed
  const char* key;      // that the message names
  const char* message;
};

class TokenizerJson : public ::testing::TestWithParam<Refusal> {};

TEST_P(TokenizerJson, Is_refused_by_key) {
  const Refusal& refusal = GetParam();
  json file = json::parse(test::byte_tokenizer());
  const json::json_pointer pointer(refusal.pointer);
  if (*refusal.value == '\0') {
    file.at(pointer.parent_pointer()).erase(pointer.back());
  } else {
    file[pointer] = json::parse(refusal.value);
  }
  EXPECT_THAT(error_of(file.dump()),
              AllOf(HasSubstr("[tokenizer] a.json: "), HasSubstr(refusal.key), HasSubstr(refusal.message)));
}

std::string name_of(const ::testing::TestParamInfo<Refusal>& info) {
  std::string name = std::string(info.param.pointer) + "_" + std::to_string(info.index);
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Parts, TokenizerJson,
    ::testing::Values(
        Refusal{"/version", R"("2.0")", "version: ", "expected 1.0"},
        Refusal{"/truncation", R"({"max_length": 3})", "truncation: ", "Cut or pad where batches are made"},
        Refusal{"/padding", R"({"strategy": "BatchLongest"})", "padding: ", "expected null"},
        Refusal{"/extra", "1", "extra: ", "expected no such key"},
        Refusal{"/model", "", "", "expected the key 'model'"},
        Refusal{"/model/type", R"("WordPiece")", "model.type: ", "Other models (WordPiece, Unigram, WordLevel)"},
        Refusal{"/model/dropout", "0.1", "model.dropout: ", "left out at random"},
        Refusal{"/model/continuing_subword_prefix", R"("##")", "model.continuing_subword_prefix: ", "got \"##\""},
        Refusal{"/model/fuse_unk", "3", "model.fuse_unk: ", "expected true or false"},
        Refusal{"/model/vocab", "[]", "model.vocab: ", "Only models of kind BPE"},
        Refusal{"/model/vocab/a", "-1", "model.vocab.a: ", "expected an id below 16777216, got -1"},
        Refusal{"/model/vocab/a", "16777216", "model.vocab.a: ", "got 16777216"},
        Refusal{"/model/vocab/a", "98", "model.vocab: ", "expected one token an id"},
        Refusal{"/model/vocab/a", "", "model", "byte"},
        Refusal{"/model/merges", R"([["a"]])", "model.merges.0: ", "expected two tokens"},
        Refusal{"/model/merges", R"(["ab"])", "model.merges.0: ", "a space between them"},
        Refusal{"/model/merges", R"([["a", "b"]])", "model", "ab"},
        Refusal{"/normalizer", R"({"type": "Lowercase"})", "normalizer.type: ", "Other normalizers are not built"},
        Refusal{"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC", "x": 1}]})",
                "normalizer.normalizers.0.x: ", "expected no such key"},
        Refusal{"/pre_tokenizer", "null", "pre_tokenizer: ", "expected an object"},
        Refusal{"/pre_tokenizer", R"({"type": "Whitespace"})", "pre_tokenizer.type: ", "ByteLevel"},
        Refusal{"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": []})", "pre_tokenizer: ", "ByteLevel"},
        Refusal{"/decoder", R"({"type": "WordPiece"})", "decoder.type: ", "Other decoders are not built"},
        Refusal{"/post_processor", R"({"type": "BertProcessing"})", "post_processor.type: ", "Other post-processors"},
        Refusal{"/post_processor/single", R"([{"Sequence": {"id": "B", "type_id": 0}}])",
                "post_processor.single.0.Sequence.id: ", "expected the text once"},
        Refusal{"/post_processor/single", "[]", "post_processor.single: ", "expected the text"},
        Refusal{"/post_processor/special_tokens", "{}", "post_processor.special_tokens: ", "expected the key '<s>'"},
        Refusal{"/post_processor/special_tokens/<s>/ids/0", "70000", "post_processor: ", "There is no token 70000"},
        Refusal{"/added_tokens/0/id", "300", "added_tokens.0.id: ", "expected id 256 for '<s>'"},
        Refusal{"/added_tokens/0/content", R"("")", "added_tokens.0.content: ", "a text that no other"},
        Refusal{"/added_tokens/0/special", "", "added_tokens.0: ", "expected the key 'special'"}),
    name_of);

// SmolLM's vocabulary lacks some control characters, of which the wheel loses the text.
TEST(TokenizerJsonText, Without_a_token_for_a_byte_is_read_and_refuses_texts_with_it) {
  json file = json::parse(test::byte_tokenizer());
  for (const char* character : {"\u0104", "\u0133", "\u00f1", "\u00ff"}) file["model"]["vocab"].erase(character);
  std::int64_t next = 0;
  std::map<std::int64_t, std::string> tokens;
  for (const auto& [token, id] : file["model"]["vocab"].items()) tokens.emplace(id.get<std::int64_t>(), token);
  for (const auto& [id, token] : tokens) file["model"]["vocab"][token] = next++;
  file["added_tokens"][0]["id"] = next;
  file["post_processor"]["special_tokens"]["<s>"]["ids"][0] = next;
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "a.json");
  const auto encode = [&](const std::string& text) {
    return test::message_of<ConfigError>([&] { (void)tokenizer.encode(text); });
  };
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("plain text \u00e9").ids), "plain text \u00e9");
  EXPECT_THAT(encode("a\x04"), HasSubstr("got byte 4, for which it has no token"));
  EXPECT_THAT(encode("a\U00040000"), HasSubstr("got byte 241"));
  EXPECT_THAT(encode(std::string(100, 'a') + "\x04"), HasSubstr("got byte 4")) << "a long word";
}

TEST(TokenizerJsonText, That_is_no_JSON_is_refused) {
  EXPECT_THAT(error_of("{"), HasSubstr("a.json: expected JSON, got none"));
  EXPECT_THAT(error_of("[]"), HasSubstr("a.json: expected an object, got []"));
  EXPECT_THAT(error_of("{\"version\": \"\xff\"}"), HasSubstr("expected JSON"));
}

// Deeper than a stack would bear.
TEST(TokenizerJsonText, That_nests_deeply_is_refused) {
  json file = json::parse(test::byte_tokenizer());
  const std::string mark = "\"deep\"";
  for (const char* pointer : {"/version", "/model/vocab/a", "/normalizer"}) {
    json changed = file;
    changed[json::json_pointer(pointer)] = "deep";
    std::string text = changed.dump();
    text.replace(text.find(mark), mark.size(), std::string(1000000, '[') + std::string(1000000, ']'));
    EXPECT_THAT(error_of(text), HasSubstr("got a list")) << pointer;
  }
}

}  // namespace
}  // namespace d9d::tokenizer_json_test
