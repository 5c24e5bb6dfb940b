#include "d9d/data/text/text_file_rows.h"

#include <map>
#include <random>

#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/base/io/input_file.h"
#include "d9d/data/source/tokenized_documents.h"
#include "d9d/data/text/document_ends.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/data/text/tokenize_rows.h"
#include "d9d/data/text/tokenizer_encoder.h"

#include "tests/data/source/source_test.h"
#include "tests/support/byte_tokenizer.h"

namespace d9d::text_file_rows_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kWhole = std::int64_t{1} << 40;

// Encodes bytes, so a text can be divided anywhere; '?' has no token.
class PickyEncoder final : public TextEncoder {
 public:
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override {
    D9D_CHECK(text.find('?') == std::string_view::npos, ConfigError, "[test] expected no question, got one.");
    bytes_.encode(text, ids);
  }
  [[nodiscard]] std::size_t next_cut(std::string_view text, std::size_t from, std::size_t to) const override {
    return bytes_.next_cut(text, from, to);
  }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return 256; }
  [[nodiscard]] std::optional<std::int64_t> id_of(std::string_view /*token*/) const override { return std::nullopt; }
  [[nodiscard]] std::string fingerprint() const override { return "picky"; }

 private:
  ByteEncoder bytes_;
};

class TextFiles : public test::SourceTest {
 protected:
  // Returns a new folder with the tokens.
  fs::path tokenise(const TextRows& rows, const TextEncoder& encoder, const TokenizeOptions& options) {
    const fs::path made = folder / ("made-" + std::to_string(num_made_++));
    (void)tokenize_rows(rows, encoder, options, made);
    return made;
  }
  static std::map<std::string, std::string> bytes_in(const fs::path& made) {
    std::map<std::string, std::string> bytes;
    for (const auto& entry : fs::directory_iterator(made)) {
      bytes[entry.path().filename().string()] = text_of_file(entry.path());
    }
    return bytes;
  }
  // Files with lines of letters, and some without line breaks.
  std::vector<fs::path> some_files() const {
    std::mt19937 random(1);
    std::string lines, letters(5000, 'x');
    for (int i = 0; i < 700; ++i) {
      lines += (random() % 3 == 0 ? " " : "é") + std::string(random() % 9, 'b') + (random() % 2 == 0 ? "\n" : ".\n\n");
    }
    return {write("a.txt", lines), write("b.txt", letters), write("c.txt", "c"), write("d.txt", lines + letters),
            write("e.txt", letters + lines)};
  }

 private:
  int num_made_ = 0;
};

TEST_F(TextFiles, In_pieces_on_any_number_of_threads_have_the_tokens_of_the_whole) {
  const std::vector<fs::path> files = some_files();
  const ByteEncoder bytes;
  const TokenizerEncoder tokenizer(write("tokenizer.json", test::byte_tokenizer()), {.add_special_tokens = true});
  EXPECT_GT(TextFileRows(files, 1000).num_pieces(0), 2);
  for (const TextEncoder* const encoder :
       {static_cast<const TextEncoder*>(&bytes), static_cast<const TextEncoder*>(&tokenizer)}) {
    for (const std::int64_t max_rows : {-1, 1, 3}) {
      TokenizeOptions options = {.end_of_document = 7, .max_rows = max_rows};
      const auto whole = bytes_in(tokenise(TextFileRows(files, kWhole), *encoder, options));
      for (const std::int64_t piece_bytes : {50, 1000, 5001}) {
        for (const std::int64_t num_threads : {1, 4}) {
          options.num_threads = num_threads;
          EXPECT_TRUE(bytes_in(tokenise(TextFileRows(files, piece_bytes), *encoder, options)) == whole)
              << "pieces of " << piece_bytes << " bytes, " << max_rows << " rows";
        }
      }
    }
  }
}

TEST_F(TextFiles, Are_cut_where_the_encoder_says) {
  const TextFileRows rows({write("a.txt", "one\ntwo\nthree\n\nfour")}, 5);
  ASSERT_EQ(rows.num_pieces(0), 4);
  std::vector<std::string> texts;
  for (std::int64_t piece = 0; piece < 4; ++piece) {
    const auto before_t = [](std::string_view text, std::size_t from, std::size_t to) {
      return std::min(text.find('t', from), to);
    };
    rows.read_piece(0, piece, before_t, [&](const TextRow& row) {
      texts.push_back(std::string(row.columns.at(0)) + (row.begins ? "<" : "") + (row.ends ? ">" : ""));
    });
  }
  EXPECT_THAT(texts, ::testing::ElementsAre("one\ntwo\n<", "three\n\nfour>"));
}

TEST_F(TextFiles, That_are_no_UTF8_are_one_bad_row_however_large) {
  const auto good = write("a.txt", std::string(100, 'a')), bad = write("b.txt", std::string(100, 'b') + "\xC3");
  const TextFileRows rows({good, bad, good}, 10);
  const TokenizedManifest made =
      tokenize_rows(rows, ByteEncoder(), {.bad_rows = BadRows::kSkip, .num_threads = 4}, folder / "skipped");
  EXPECT_EQ(made.num_skipped, 1);
  const TokenizedDocuments documents(folder / "skipped", 256);
  EXPECT_EQ(test::all_documents(documents), std::vector<test::Ids>(2, test::Ids(100, 'a')));
  EXPECT_THAT([&] { tokenise(rows, ByteEncoder(), {}); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("not UTF-8, from byte 100 on"), HasSubstr("b.txt"))));
}

TEST_F(TextFiles, Show_by_their_last_piece_alone_whether_a_token_ends_them) {
  const TokenizerEncoder tokenizer(write("tokenizer.json", test::byte_tokenizer()), {.add_special_tokens = false});
  const std::string lines = "one<s>\ntwo\nthree\n";
  EXPECT_TRUE(end_with_special_tokens(TextFileRows({write("a.txt", lines + "four<s>")}, 4), tokenizer));
  EXPECT_FALSE(end_with_special_tokens(TextFileRows({write("a.txt", lines + "four")}, 4), tokenizer));
}

TEST_F(TextFiles, Are_refused_where_a_piece_has_no_tokens_even_if_bad_rows_are_left_out) {
  const auto file = write("a.txt", std::string(100, 'a') + "?" + std::string(100, 'a'));
  const auto tokenised = [&](std::int64_t piece_bytes) {
    return TokenizedDocuments(tokenise(TextFileRows({file, write("b.txt", "b")}, piece_bytes), PickyEncoder(),
                                       {.bad_rows = BadRows::kSkip}),
                              256)
        .size();
  };
  EXPECT_EQ(tokenised(kWhole), 1);
  EXPECT_THAT([&] { tokenised(10); }, ThrowsMessage<IoError>(AllOf(HasSubstr("expected no question"),
                                                                   HasSubstr("a.txt"), HasSubstr("cut the file"))));
}

}  // namespace
}  // namespace d9d::text_file_rows_test
