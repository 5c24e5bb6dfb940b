// Ids, offsets and decoded texts equal those of the tokenizers wheel, in all forms of published tokenizers.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/tokenizer/decode_stream.h"
#include "d9d/tokenizer/tokenizer.h"

#include "tests/support/python.h"
#include "tests/tokenizer/wheel_records.h"

namespace d9d::wheel_test {
namespace {

using test::WheelRecord;
using test::WheelRecords;

// Of text. D9D_TOKENIZER_MEGABYTES is more in the test with label `full`; D9D_TOKENIZER_ORACLE names a folder to keep.
const std::filesystem::path& oracle() {
  static const std::filesystem::path folder = [] {
    const char* megabytes = std::getenv("D9D_TOKENIZER_MEGABYTES");
    const char* kept = std::getenv("D9D_TOKENIZER_ORACLE");
    std::filesystem::path path = kept == nullptr ? ::testing::TempDir() + "wheel_oracle" : kept;
    if (kept == nullptr || !std::filesystem::exists(path)) {
      test::run_python("tests/tokenizer/wheel_oracle.py", {path.string(), megabytes == nullptr ? "1" : megabytes});
    }
    return path;
  }();
  return folder;
}

std::string shown(const WheelRecord& record, std::size_t token) {
  const std::size_t near = token < record.offsets.size() ? static_cast<std::size_t>(record.offsets[token].begin) : 0;
  return "token " + std::to_string(token) + ", character " + std::to_string(near) + " of '" +
         (record.text.size() < 400 ? record.text : record.text.substr(0, 400)) + "'";
}

void expect_equal(const Tokenizer& tokenizer, const WheelRecord& record) {
  const Encoding encoding = tokenizer.encode(record.text, {.with_offsets = true});
  for (std::size_t i = 0; i < record.ids.size() && i < encoding.ids.size(); ++i) {
    ASSERT_EQ(encoding.ids[i], record.ids[i]) << shown(record, i);
    ASSERT_EQ(encoding.offsets[i].begin, record.offsets[i].begin) << shown(record, i);
    ASSERT_EQ(encoding.offsets[i].end, record.offsets[i].end) << shown(record, i);
  }
  ASSERT_EQ(encoding.ids.size(), record.ids.size()) << shown(record, 0);
  ASSERT_EQ(encoding.offsets.size(), record.offsets.size());
  std::vector<std::uint32_t> ids;
  tokenizer.append_ids(record.text, {}, ids);
  ASSERT_EQ(ids, record.ids);
  ASSERT_EQ(tokenizer.decode(record.ids), record.without_special) << shown(record, 0);
  ASSERT_EQ(tokenizer.decode(record.ids, {.skip_special_tokens = false}), record.decoded) << shown(record, 0);
  DecodeStream stream(tokenizer);
  std::string streamed;
  for (const std::uint32_t id : record.ids) streamed += stream.step(id);
  ASSERT_EQ(streamed + stream.finish(), record.without_special);
}

class Wheel : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] Tokenizer tokenizer() const {
    return Tokenizer::from_file(oracle() / (GetParam() + std::string(".json")));
  }
  [[nodiscard]] WheelRecords records() const { return WheelRecords(oracle() / (GetParam() + std::string(".bin"))); }
};

TEST_P(Wheel, Gives_the_same_ids_offsets_and_texts) {
  const Tokenizer tokenizer = this->tokenizer();
  WheelRecords records = this->records();
  ASSERT_TRUE(records.has_next());
  while (records.has_next()) ASSERT_NO_FATAL_FAILURE(expect_equal(tokenizer, records.next()));
}

INSTANTIATE_TEST_SUITE_P(Forms, Wheel,
                         ::testing::Values("qwen", "gpt2", "qwen2", "qwen35", "llama3", "o200k", "o200k_removed",
                                           "prefix", "digits", "digit_runs", "deepseek", "NFC", "NFD", "NFKC", "NFKD",
                                           "NFD_NFKC", "few_bytes"),
                         [](const auto& form) { return std::string(form.param); });

TEST(WheelThreads, Share_one_tokenizer) {
  const auto tokenizer = Tokenizer::from_file(oracle() / "qwen2.json");
  WheelRecords records(oracle() / "qwen2.bin");
  std::vector<WheelRecord> some;
  for (int i = 0; i < 40 && records.has_next(); ++i) some.push_back(records.next());
  std::vector<int> num_equal(4);
  std::vector<std::thread> threads;
  for (int& count : num_equal) {
    threads.emplace_back([&] {
      for (const WheelRecord& record : some) count += tokenizer.encode(record.text).ids == record.ids ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_equal, std::vector<int>(4, static_cast<int>(some.size())));
}

}  // namespace
}  // namespace d9d::wheel_test
