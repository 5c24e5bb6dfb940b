#include "d9d/data/source/token_corpus.h"

#include <gmock/gmock.h>

#include "d9d/base/check.h"

#include "tests/data/source/source_test.h"

namespace d9d::token_corpus_test {
namespace {

using test::Ids;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenCorpusFiles : public test::SourceTest {};

TEST_F(TokenCorpusFiles, Are_a_document_each) {
  const TokenCorpus corpus({write_tokens<std::uint16_t>("a", {1, 65535, 3}), write_tokens<std::uint16_t>("b", {4})},
                           {.dtype = TokenDtype::kUint16, .vocabulary_size = 65536});
  EXPECT_THAT(test::all_documents(corpus), ElementsAre(Ids{1, 65535, 3}, Ids{4}));
}

TEST_F(TokenCorpusFiles, End_documents_after_a_token_and_with_the_file) {
  const TokenCorpus corpus(
      {write_tokens<std::uint32_t>("a", {5, 0, 0, 6, 7, 0}), write_tokens<std::uint32_t>("b", {8, 9})},
      {.dtype = TokenDtype::kUint32, .vocabulary_size = 10, .end_of_document = 0});
  EXPECT_THAT(test::all_documents(corpus), ElementsAre(Ids{5, 0}, Ids{0}, Ids{6, 7, 0}, Ids{8, 9}));
}

TEST_F(TokenCorpusFiles, End_documents_at_any_place_of_a_long_file) {
  std::vector<std::uint16_t> tokens(10000, 1);
  for (const int end : {0, 4095, 4096, 8191, 9000}) tokens[end] = 2;
  const TokenCorpus corpus({write_tokens("long", tokens)}, {.vocabulary_size = 3, .end_of_document = 2});
  Ids lengths;
  for (std::int64_t i = 0; i < corpus.size(); ++i) lengths.push_back(corpus.length(i));
  EXPECT_THAT(lengths, ElementsAre(1, 4095, 1, 4095, 809, 999));
}

TEST_F(TokenCorpusFiles, Have_ids_of_every_integer_dtype) {
  const Ids expected{7, 0, 100};
  const auto check = [&](auto stored, TokenDtype dtype) {
    const std::vector<decltype(stored)> tokens{7, 0, 100};
    const TokenCorpus corpus({write_tokens("tokens", tokens)}, {.dtype = dtype, .vocabulary_size = 101});
    EXPECT_THAT(test::all_documents(corpus), ElementsAre(expected)) << enum_name(dtype);
  };
  check(std::uint8_t{}, TokenDtype::kUint8);
  check(std::uint16_t{}, TokenDtype::kUint16);
  check(std::uint32_t{}, TokenDtype::kUint32);
  check(std::int8_t{}, TokenDtype::kInt8);
  check(std::int16_t{}, TokenDtype::kInt16);
  check(std::int32_t{}, TokenDtype::kInt32);
  check(std::int64_t{}, TokenDtype::kInt64);
}

TEST_F(TokenCorpusFiles, Name_the_place_of_a_negative_id) {
  const auto path = write_tokens<std::int32_t>("a", {1, 2, -7});
  const TokenCorpus corpus({path}, {.dtype = TokenDtype::kInt32, .vocabulary_size = 10});
  EXPECT_THAT(test::message_of<IoError>([&] { (void)test::document_of(corpus, 0); }),
              AllOf(HasSubstr("got -7"), HasSubstr("token 2 of '" + path)));
}

TEST_F(TokenCorpusFiles, Are_refused_with_an_end_outside_the_vocabulary_and_without_files) {
  const auto path = write("text", "ab");
  EXPECT_THROW(TokenCorpus({path}, {.vocabulary_size = 4, .end_of_document = 4}), ConfigError);
  EXPECT_THROW(TokenCorpus({path}, {}), ConfigError);
  EXPECT_THROW(TokenCorpus({}, {.vocabulary_size = 4}), ConfigError);
}

TEST_F(TokenCorpusFiles, Join_with_other_sources) {
  const auto corpus = [&](const std::string& name, const std::vector<std::uint8_t>& tokens) {
    return std::make_shared<const TokenCorpus>(
        std::vector<std::filesystem::path>{write_tokens(name, tokens)},
        TokenFormat{.dtype = TokenDtype::kUint8, .vocabulary_size = 10, .end_of_document = 0});
  };
  const JoinedDocuments joined({corpus("a", {1, 0, 2}), corpus("b", {3}), corpus("c", {4, 0, 5, 0})});
  EXPECT_THAT(test::all_documents(joined), ElementsAre(Ids{1, 0}, Ids{2}, Ids{3}, Ids{4, 0}, Ids{5, 0}));
  EXPECT_THAT(joined.place(4), AllOf(HasSubstr("token 2 of"), HasSubstr("source/c'")));
  EXPECT_THROW(JoinedDocuments({}), ConfigError);
}

}  // namespace
}  // namespace d9d::token_corpus_test
