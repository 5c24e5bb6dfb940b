#include "d9d/data/text/tokenizer_encoder.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/data/source/source_test.h"

namespace d9d::tokenizer_encoder_test {
namespace {

using ::testing::ElementsAre;

class EncoderOfAFile : public test::SourceTest {
 protected:
  // Bytes as tokens 0..255 in the order of their names, and one token in front.
  std::string write_tokenizer(const std::string& name) const {
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
    const nlohmann::json begin = {{"id", 256},       {"content", "<s>"},    {"single_word", false}, {"lstrip", false},
                                  {"rstrip", false}, {"normalized", false}, {"special", true}};
    const nlohmann::json of_template = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}}},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}}}};
    const nlohmann::json file = {
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", {begin}},
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
    return write(name, file.dump());
  }
};

TEST_F(EncoderOfAFile, Adds_the_tokens_of_the_template_where_it_is_asked_to) {
  const auto path = write_tokenizer("tokenizer.json");
  test::Ids plain{7}, with;
  TokenizerEncoder(path, {.add_special_tokens = false}).encode("ab", plain);
  TokenizerEncoder(path, {.add_special_tokens = true}).encode("ab", with);
  EXPECT_THAT(plain, ElementsAre(7, 'a', 'b'));  // ids are added
  EXPECT_THAT(with, ElementsAre(256, 'a', 'b'));
}

TEST_F(EncoderOfAFile, Knows_its_tokens_and_how_many_ids_there_are) {
  const TokenizerEncoder encoder(write_tokenizer("tokenizer.json"), {});
  EXPECT_EQ(encoder.id_of("<s>"), 256);
  EXPECT_EQ(encoder.id_of("<nothing>"), std::nullopt);
  EXPECT_EQ(encoder.vocabulary_size(), 257);
}

TEST_F(EncoderOfAFile, Has_the_fingerprint_of_its_content_and_options) {
  const auto path = write_tokenizer("a.json"), copy = write_tokenizer("b.json");
  const std::string one = TokenizerEncoder(path, {}).fingerprint();
  EXPECT_EQ(TokenizerEncoder(copy, {}).fingerprint(), one);
  EXPECT_NE(TokenizerEncoder(path, {.add_special_tokens = false}).fingerprint(), one);
}

}  // namespace
}  // namespace d9d::tokenizer_encoder_test
