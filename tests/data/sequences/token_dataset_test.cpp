#include "d9d/data/sequences/token_dataset.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/io_faults.h"

namespace d9d::token_dataset_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int64_t> values(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return {dense.const_data_ptr<std::int64_t>(), dense.const_data_ptr<std::int64_t>() + dense.numel()};
}

class TokenFiles : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return folder / name;
  }
  template <class Stored>
  std::string write_tokens(const std::string& name, const std::vector<Stored>& tokens) const {
    return write(name, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Stored)});
  }

  const std::filesystem::path folder = std::filesystem::canonical(test::fresh_directory("tokens"));
};

template <class Error, class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no such error";
}

TEST_F(TokenFiles, Reads_text_as_bytes_with_a_separator_between_documents) {
  write("1.txt", "ab");
  write("2.txt", "\xC3\xA9");  // one letter, two bytes
  const auto dataset = text_dataset({folder / "*.txt"}, 4);
  ASSERT_EQ(dataset->size(), 1);
  EXPECT_THAT(values(dataset->get(0).input_ids), ElementsAre('a', 'b', 0, 0xC3));
  EXPECT_THAT(values(dataset->get(0).labels), ElementsAre('b', 0, 0xC3, 0xA9));
}

TEST_F(TokenFiles, Cuts_samples_that_share_one_token) {
  const auto path = write("text", "0123456789");
  const auto dataset = text_dataset({path}, 3);
  ASSERT_EQ(dataset->size(), 3);  // ten tokens give nine predictions
  for (std::int64_t i = 0; i < 3; ++i) {
    const TokenSample sample = dataset->get(i);
    EXPECT_THAT(values(sample.input_ids), ElementsAre('0' + 3 * i, '1' + 3 * i, '2' + 3 * i));
    EXPECT_THAT(values(sample.labels), ElementsAre('1' + 3 * i, '2' + 3 * i, '3' + 3 * i));
    EXPECT_THAT(values(sample.position_ids), ElementsAre(0, 1, 2));
  }
}

TEST_F(TokenFiles, Reads_ids_of_two_and_four_bytes_across_files) {
  const auto two = write_tokens<std::uint16_t>("two", {1, 65535, 3});
  const auto other = write_tokens<std::uint16_t>("two_b", {4, 5});
  const auto four = write_tokens<std::uint32_t>("four", {1, 70000, 3});
  const auto of_two = token_file_dataset({two, other}, {.dtype = TokenDtype::kUint16, .vocabulary_size = 65536}, 4);
  EXPECT_THAT(values(of_two->get(0).labels), ElementsAre(65535, 3, 4, 5));
  const auto of_four = token_file_dataset({four}, {.dtype = TokenDtype::kUint32, .vocabulary_size = 70001}, 2);
  EXPECT_THAT(values(of_four->get(0).input_ids), ElementsAre(1, 70000));
}

TEST_F(TokenFiles, Name_file_position_id_and_vocabulary_of_a_token_outside) {
  const auto first = write_tokens<std::uint16_t>("first", {1, 2, 3});
  const auto second = write_tokens<std::uint16_t>("second", {4, 100, 6});
  const auto dataset = token_file_dataset({first, second}, {.dtype = TokenDtype::kUint16, .vocabulary_size = 100}, 2);
  EXPECT_NO_THROW((void)dataset->get(0));
  EXPECT_THAT(
      error_of<IoError>([&] { (void)dataset->get(1); }),
      AllOf(HasSubstr(second), HasSubstr("token 1 of"), HasSubstr("got 100"), HasSubstr("vocabulary_size = 100")));
}

TEST_F(TokenFiles, Reject_half_a_token_and_an_empty_file) {
  const auto odd = write("odd", "abc");
  EXPECT_THAT(error_of<IoError>([&] { (void)token_file_dataset({odd}, {.vocabulary_size = 9}, 1); }),
              AllOf(HasSubstr(odd), HasSubstr("3 bytes")));
  const auto empty = write("empty", "");
  EXPECT_THAT(error_of<IoError>([&] { (void)text_dataset({empty}, 1); }), AllOf(HasSubstr(empty), HasSubstr("empty")));
}

TEST_F(TokenFiles, Reject_fewer_tokens_than_one_sequence_and_its_last_label) {
  const auto path = write("short", "abcd");
  EXPECT_NO_THROW((void)text_dataset({path}, 3));
  EXPECT_THAT(error_of<ConfigError>([&] { (void)text_dataset({path}, 4); }),
              AllOf(HasSubstr(path), HasSubstr("at least 5 tokens"), HasSubstr("got 4")));
  EXPECT_THROW((void)text_dataset({path}, 0), ConfigError);
}

}  // namespace
}  // namespace d9d::token_dataset_test
