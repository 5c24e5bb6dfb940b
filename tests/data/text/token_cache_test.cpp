#include "d9d/data/text/token_cache.h"

#include <array>
#include <atomic>

#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/data/text/jsonl_rows.h"

#include "tests/data/source/source_test.h"

namespace d9d::token_cache_test {
namespace {

using test::Ids;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Encodes bytes and counts the calls.
class CountingEncoder final : public TextEncoder {
 public:
  explicit CountingEncoder(std::int64_t vocabulary_size = 256) : vocabulary_size_(vocabulary_size) {}
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override {
    ++num_calls;
    bytes_.encode(text, ids);
  }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return vocabulary_size_; }
  [[nodiscard]] std::optional<std::int64_t> id_of(std::string_view token) const override { return bytes_.id_of(token); }
  [[nodiscard]] std::string fingerprint() const override { return "counting"; }
  mutable std::atomic<int> num_calls = 0;

 private:
  std::int64_t vocabulary_size_;
  ByteEncoder bytes_;
};

class TokenCache : public test::SourceTest {
 protected:
  std::shared_ptr<const TokenizedDocuments> documents(const TextRows& rows, TokenizeOptions tokenize = {}) const {
    const std::shared_ptr<const TextRows> borrowed(std::shared_ptr<void>(), &rows);
    return cached_documents(borrowed, std::shared_ptr<const TextEncoder>(std::shared_ptr<void>(), &encoder),
                            {.folder = folder / "cache",
                             .tokenize = tokenize,
                             .vocabulary_size = 256,
                             .shows_progress = false,
                             .log = Logger().with_sink([this](std::string_view line) { log += line; })});
  }
  std::filesystem::path only_entry() const {
    std::vector<std::filesystem::path> entries;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) entries.push_back(entry.path());
    EXPECT_EQ(entries.size(), 1U);
    return entries.at(0);
  }

  const CountingEncoder encoder;
  mutable std::string log;
};

TEST_F(TokenCache, Tokenises_once_and_maps_afterwards) {
  const JsonlRows rows({write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"\"}\n{\"text\": \"c\"}\n")}, {"text"});
  const TokenizeOptions options{.end_of_document = 0};
  EXPECT_THAT(test::all_documents(*documents(rows, options)), ElementsAre(Ids{'a', 'b', 0}, Ids{0}, Ids{'c', 0}));
  EXPECT_EQ(encoder.num_calls, 3);
  EXPECT_THAT(test::all_documents(*documents(rows, options)), ElementsAre(Ids{'a', 'b', 0}, Ids{0}, Ids{'c', 0}));
  EXPECT_EQ(encoder.num_calls, 3);
}

TEST_F(TokenCache, Has_another_key_for_other_files_options_and_encoders) {
  const auto path = write("a.jsonl", "{\"text\": \"ab\", \"other\": \"x\"}\n");
  const JsonlRows rows({path}, {"text"});
  std::set<std::string> keys{token_cache_key(rows, encoder, {}),
                             token_cache_key(rows, ByteEncoder(), {}),
                             token_cache_key(rows, encoder, {.end_of_document = 0}),
                             token_cache_key(rows, encoder, {.bad_rows = BadRows::kSkip}),
                             token_cache_key(rows, encoder, {.max_rows = 1}),
                             token_cache_key(JsonlRows({path}, {"other"}), encoder, {})};
  EXPECT_EQ(keys.size(), 6U);
  EXPECT_TRUE(keys.contains(token_cache_key(rows, encoder, {.num_threads = 4})));
  write("a.jsonl", "{\"text\": \"abc\"}\n");
  EXPECT_FALSE(keys.contains(token_cache_key(JsonlRows({path}, {"text"}), encoder, {})));
}

TEST_F(TokenCache, Has_another_key_for_an_edit_that_keeps_size_and_time_where_the_samples_see_it) {
  const std::string text = "{\"text\": \"" + std::string(20000, 'a') + "\"}\n";
  const auto key_of = [&](std::size_t edited) {
    std::string other = text;
    other[edited] = 'b';
    const std::filesystem::path path = write("a.jsonl", other);
    std::filesystem::last_write_time(path, std::filesystem::file_time_type());
    return token_cache_key(JsonlRows({path}, {"text"}), encoder, {});
  };
  EXPECT_EQ(key_of(12), key_of(12));
  const std::set<std::string> keys{key_of(12), key_of(13), key_of(text.size() / 2), key_of(text.size() - 5)};
  EXPECT_EQ(keys.size(), 4U);
}

TEST_F(TokenCache, Is_the_same_for_any_number_of_threads) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += "{\"text\": \"" + std::string(i * 31 % 97, 'a' + i % 26) + "\"}\n";
  const JsonlRows rows({write("a.jsonl", text)}, {"text"}, /*part_bytes=*/300);
  const auto files_of = [&](std::int64_t num_threads) {
    const auto to = folder / ("with_" + std::to_string(num_threads));
    tokenize_rows(rows, encoder, {.end_of_document = 0, .num_threads = num_threads}, to);
    std::string all;
    for (const auto name : {kTokensFile, kOffsetsFile, kPartsFile, kManifestFile}) {
      std::ifstream file(to / name, std::ios::binary);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  };
  const std::string expected = files_of(1);
  EXPECT_EQ(files_of(3), expected);
  EXPECT_EQ(files_of(8), expected);
}

TEST_F(TokenCache, Stores_large_vocabularies_in_four_bytes) {
  const JsonlRows rows({write("a.jsonl", "{\"text\": \"ab\"}\n")}, {"text"});
  const CountingEncoder large(70000);
  EXPECT_EQ(tokenize_rows(rows, large, {}, folder / "large").dtype, TokenDtype::kUint32);
  EXPECT_THAT(test::all_documents(TokenizedDocuments(folder / "large", 256)), ElementsAre(Ids{'a', 'b'}));
}

TEST_F(TokenCache, Knows_the_prompts_of_pairs) {
  const JsonlRows rows(
      {write("a.jsonl",
             "{\"p\": \"ask\", \"c\": \"answer\"}\n{\"p\": \"\", \"c\": \"x\"}\n{\"p\": \"y\", \"c\": \"\"}\n")},
      {"p", "c"});
  const auto pairs = documents(rows, {.end_of_document = '.'});
  const auto target_of = [&](std::int64_t document) {
    const Ids tokens = test::document_of(*pairs, document);
    const auto [begin, end] = pairs->targets(document).at(0);
    return std::string(tokens.begin() + begin, tokens.begin() + end);
  };
  EXPECT_EQ(target_of(0), "answer.");
  EXPECT_EQ(target_of(1), "x.");
  EXPECT_EQ(target_of(2), ".");
  EXPECT_EQ(pairs->length(0), 10);
}

TEST_F(TokenCache, Reads_no_more_rows_than_are_asked_for) {
  const JsonlRows rows({write("a.jsonl", "{\"c\": \"a\", \"p\": \"\"}\n{\"c\": \"b\", \"p\": \"\"}\n{\"c\": 3}\n")},
                       {"p", "c"}, 20);
  EXPECT_THAT(test::all_documents(*documents(rows, {.max_rows = 2})), ElementsAre(Ids{'a'}, Ids{'b'}));
}

TEST_F(TokenCache, Refuses_bad_rows_by_name_or_skips_and_counts_them) {
  const JsonlRows rows({write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": 3}\nnothing\n{\"text\": \"c\"}\n")}, {"text"});
  EXPECT_THAT(test::message_of<IoError>([&] { (void)documents(rows); }),
              AllOf(HasSubstr("line 2 of"), HasSubstr("a.jsonl"), HasSubstr("number instead of text")));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "cache"));
  const auto skipped = documents(rows, {.bad_rows = BadRows::kSkip});
  EXPECT_THAT(test::all_documents(*skipped), ElementsAre(Ids{'a', 'b'}, Ids{'c'}));
  EXPECT_EQ(skipped->manifest().num_skipped, 2);
  EXPECT_THAT(skipped->manifest().first_skipped, HasSubstr("line 2 of"));
  EXPECT_THAT(log, AllOf(HasSubstr("skipped 2 bad rows"), HasSubstr("line 2 of")));
}

TEST_F(TokenCache, Refuses_sources_without_a_good_row) {
  const JsonlRows rows({write("a.jsonl", "{\"txt\": \"ab\"}\n{\"txt\": \"cd\"}\n"), write("b.jsonl", "")}, {"text"});
  EXPECT_THAT(test::message_of<IoError>([&] { (void)documents(rows, {.bad_rows = BadRows::kSkip}); }),
              AllOf(HasSubstr("2 bad ones"), HasSubstr("no column 'text'")));
}

TEST_F(TokenCache, Leaves_nothing_when_the_disk_is_full) {
  const JsonlRows rows({write("a.jsonl", "{\"text\": \"" + std::string(100000, 'x') + "\"}\n")}, {"text"});
  {
    const test::FileSizeLimit limit(10000);
    EXPECT_THROW((void)documents(rows), IoError);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "cache"));
  EXPECT_EQ(documents(rows)->length(0), 100000);
}

TEST_F(TokenCache, Ignores_what_a_killed_process_left) {
  const JsonlRows rows({write("a.jsonl", "{\"text\": \"ab\"}\n")}, {"text"});
  const auto key = token_cache_key(rows, encoder, {});
  std::filesystem::create_directories(folder / "cache" / (key + ".tmp-1-0"));
  std::filesystem::create_directories(folder / "cache" / key);
  EXPECT_THAT(test::all_documents(*documents(rows)), ElementsAre(Ids{'a', 'b'}));
}

TEST_F(TokenCache, Refuses_damaged_folders_by_name) {
  const JsonlRows rows({write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n")}, {"text"});
  (void)documents(rows);
  const auto entry = only_entry();
  const auto error = [&] { return test::message_of<IoError>([&] { (void)test::all_documents(*documents(rows)); }); };
  std::filesystem::resize_file(entry / kTokensFile, 7);
  EXPECT_THAT(error(), AllOf(HasSubstr("tokens.bin"), HasSubstr("8 bytes"), HasSubstr("got 7"), HasSubstr("Delete")));
  std::filesystem::resize_file(entry / kTokensFile, 8);
  const std::int64_t far = 5;
  std::fstream(entry / kOffsetsFile, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(8)
      .write(reinterpret_cast<const char*>(&far), 8);
  EXPECT_THAT(error(), AllOf(HasSubstr("offsets.bin"), HasSubstr("got 0 and 5 at document 0")));
  std::ofstream(entry / kManifestFile) << "{\"format\": 1}";
  EXPECT_THAT(error(), AllOf(HasSubstr("manifest.json"), HasSubstr(cat("format ", kTokenizedFormat))));
  std::ofstream(entry / kManifestFile) << "{";
  EXPECT_THAT(error(), HasSubstr("manifest.json"));
}

TEST_F(TokenCache, Names_the_row_of_a_document) {
  std::string text;
  for (int i = 0; i < 9; ++i) text += i % 4 == 1 ? "bad\n" : "{\"text\": \"" + std::string(i, 'x') + "\"}\n";
  const JsonlRows rows({write("a.jsonl", text), write("b.jsonl", "bad\n{\"text\": \"ab\"}\n")}, {"text"},
                       /*part_bytes=*/40);
  const auto all = documents(rows, {.bad_rows = BadRows::kSkip});
  ASSERT_EQ(all->size(), 8);
  const std::array lines{1, 3, 4, 5, 7, 8, 9};  // 2 and 6 are bad
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(all->place(static_cast<std::int64_t>(i)),
              cat("line ", lines[i], " of '", (folder / "a.jsonl").string(), "'"));
  }
  EXPECT_EQ(all->place(7), cat("line 2 of '", (folder / "b.jsonl").string(), "'"));
}

TEST_F(TokenCache, Names_the_document_of_an_id_outside_the_vocabulary) {
  const JsonlRows rows({write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"a~\"}\n")}, {"text"});
  tokenize_rows(rows, encoder, {}, folder / "tokens");
  const TokenizedDocuments small(folder / "tokens", '~');
  EXPECT_NO_THROW((void)test::document_of(small, 0));
  EXPECT_THAT(test::message_of<IoError>([&] { (void)test::document_of(small, 1); }),
              AllOf(HasSubstr("got 126 at token 1 of document 1"), HasSubstr("vocabulary_size = 126")));
}

}  // namespace
}  // namespace d9d::token_cache_test
