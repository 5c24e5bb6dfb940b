#include "d9d/data/text/tokenizer_encoder.h"

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
