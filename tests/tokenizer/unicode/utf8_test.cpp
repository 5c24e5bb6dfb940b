#include "d9d/tokenizer/unicode/utf8.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/tokenizer/tokenizer.h"

#include "tests/support/byte_tokenizer.h"
#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::utf8_test {
namespace {

using ::testing::HasSubstr;

struct Record {
  std::string bytes;
  std::string replaced;
  std::int32_t first_bad;
};

std::vector<Record> oracle() {
  const std::string path = ::testing::TempDir() + "utf8_oracle.bin";
  test::run_python("tests/tokenizer/unicode/utf8_oracle.py", {path});
  std::ifstream stream(path, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  std::size_t at = 0;
  const auto number = [&] {
    std::uint32_t value = 0;
    std::memcpy(&value, file.data() + at, sizeof value);
    at += sizeof value;
    return value;
  };
  const auto text = [&] {
    const std::uint32_t size = number();
    at += size;
    return file.substr(at - size, size);
  };
  std::vector<Record> records;
  while (at < file.size()) {
    Record& record = records.emplace_back();
    record.bytes = text();
    record.replaced = text();
    record.first_bad = static_cast<std::int32_t>(number());
  }
  return records;
}

TEST(Utf8, Is_refused_or_replaced_where_it_is_invalid_as_Python_does) {
  const Tokenizer tokenizer = Tokenizer::from_json(test::byte_tokenizer(), "bytes");
  const auto records = oracle();
  ASSERT_GT(records.size(), 20000U);
  std::size_t num_bad = 0;
  for (const auto& [bytes, replaced, first_bad] : records) {
    const auto bad = invalid_utf8_at(bytes);
    ASSERT_EQ(bad ? static_cast<std::int32_t>(*bad) : -1, first_bad) << ::testing::PrintToString(bytes);
    ASSERT_EQ(replace_invalid_utf8(bytes), replaced) << ::testing::PrintToString(bytes);
    if (!bad) continue;
    ASSERT_THAT(test::message_of<ConfigError>([&, &text = bytes] { (void)tokenizer.encode(text); }),
                HasSubstr(cat("invalid byte at position ", *bad, " of a text of ", bytes.size(), " bytes")));
    // Tokens of any bytes become the same text: a model may say half a character.
    const std::vector<std::uint32_t> ids = [&, &text = bytes] {
      std::vector<std::uint32_t> result;
      for (const char byte : text) result.push_back(static_cast<unsigned char>(byte));
      return result;
    }();
    ASSERT_EQ(tokenizer.decode(ids), replaced);
    ++num_bad;
  }
  EXPECT_GT(num_bad, 10000U);
}

}  // namespace
}  // namespace d9d::utf8_test
