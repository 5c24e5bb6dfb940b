#include "d9d/data/text/tokenizer_encoder.h"

#include <array>
#include <string_view>

#include <gmock/gmock.h>

#include "tests/data/source/source_test.h"
#include "tests/support/byte_tokenizer.h"

namespace d9d::tokenizer_encoder_test {
namespace {

using ::testing::ElementsAre;

class EncoderOfAFile : public test::SourceTest {
 protected:
  std::string write_tokenizer(const std::string& name) const { return write(name, test::byte_tokenizer()); }
};

TEST_F(EncoderOfAFile, Adds_the_tokens_of_the_template_where_it_is_asked_to) {
  const auto path = write_tokenizer("tokenizer.json");
  const std::array<std::string_view, 1> columns{"ab"};
  EXPECT_THAT(TokenizerEncoder(path, {.add_special_tokens = false}).encode_row(columns, {}).tokens,
              ElementsAre('a', 'b'));
  EXPECT_THAT(TokenizerEncoder(path, {.add_special_tokens = true}).encode_row(columns, 7).tokens,
              ElementsAre(256, 'a', 'b', 7));
  test::Ids ids{7};
  TokenizerEncoder(path, {.add_special_tokens = true}).encode("ab", ids);
  EXPECT_THAT(ids, ElementsAre(7, 'a', 'b'));  // appends only the ids of the text
}

TEST_F(EncoderOfAFile, Adds_them_once_around_a_prompt_and_what_answers_it) {
  nlohmann::json file = nlohmann::json::parse(test::byte_tokenizer());
  nlohmann::json& single = file["post_processor"]["single"];
  single.push_back(single[0]);  // adds <s> after the text too
  const TokenizerEncoder encoder(write("tokenizer.json", file.dump()), {.add_special_tokens = true});
  const std::array<std::string_view, 2> columns{"ab", "c"};
  const EncodedRow row = encoder.encode_row(columns, 7);
  const std::string whole = "abc";
  const auto expected = Tokenizer::from_json(file.dump(), "file").encode(whole).ids;
  ASSERT_EQ(row.tokens.size(), expected.size() + 1);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), row.tokens.begin()));
  EXPECT_EQ(row.tokens.back(), 7);
  ASSERT_EQ(row.targets.value().size(), 1U);
  EXPECT_EQ(row.targets->front().begin, 3);
  EXPECT_EQ(row.targets->front().end, 6);
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
