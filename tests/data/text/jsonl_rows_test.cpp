#include "d9d/data/text/jsonl_rows.h"

#include <gmock/gmock.h>

#include "d9d/data/text/text_file_rows.h"

#include "tests/data/source/source_test.h"

namespace d9d::jsonl_rows_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// For each row, its columns joined by '|', or its place and problem.
std::vector<std::string> lines_of(const TextRows& rows) {
  std::vector<std::string> lines;
  for (std::int64_t part = 0; part < rows.num_parts(); ++part) {
    rows.read(part, [&](const TextRow& row) {
      std::string line = row.problem.empty() ? "" : rows.place(part, row.row) + ": " + row.problem;
      for (const auto column : row.columns) line += std::string(line.empty() ? "" : "|") + std::string(column);
      lines.push_back(line);
    });
  }
  return lines;
}

class JsonLines : public test::SourceTest {};

TEST_F(JsonLines, Are_rows_of_the_columns_that_are_asked_for) {
  const auto path =
      write("a.jsonl", "{\"text\": \"one \\u00e9\\n\", \"id\": 3}\r\n\n{\"text\": \"two\"}\n  \n{\"text\":\"\"}");
  EXPECT_THAT(lines_of(JsonlRows({path}, {"text"})), ElementsAre("one é\n", "two", ""));
  const auto pairs = write("b.jsonl", R"({"completion": "B", "prompt": "A"})");
  EXPECT_THAT(lines_of(JsonlRows({pairs}, {"prompt", "completion"})), ElementsAre("A|B"));
}

TEST_F(JsonLines, Have_values_as_JSON_where_they_are_asked_for) {
  const auto path = write("a.jsonl", "{\"m\": [{\"b\": 1, \"a\": \"\u00e9\"}]}\n{\"m\": \"[2]\"}\n{\"m\": null}\n{}");
  EXPECT_THAT(lines_of(JsonlRows({path}, {"m"}, JsonlRows::kPartBytes, ColumnContent::kJson)),
              ElementsAre("[{\"b\":1,\"a\":\"é\"}]", "[2]", "null", HasSubstr("no column 'm'")));
  const auto pairs =
      write("b.jsonl", "{\"m\": [1]}\n{\"m\": [2], \"t\": null}\n{\"m\": [3], \"t\": [4]}\n{\"t\": [5]}");
  EXPECT_THAT(lines_of(JsonlRows({pairs}, {"m", "t"}, JsonlRows::kPartBytes, ColumnContent::kJson)),
              ElementsAre("[1]|null", "[2]|null", "[3]|[4]", HasSubstr("no column 'm'")));
}

// A recursive parser would overflow the stack.
TEST_F(JsonLines, That_nest_deeply_are_bad_rows) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const auto path = write("a.jsonl", "{\"m\": " + deep + "}\n{\"m\": [1]}\n");
  EXPECT_THAT(lines_of(JsonlRows({path}, {"m"}, JsonlRows::kPartBytes, ColumnContent::kJson)),
              ElementsAre(HasSubstr("more than 64 levels"), "[1]"));
}

TEST_F(JsonLines, Are_the_same_however_files_are_cut_into_parts) {
  std::string text;
  std::vector<std::string> expected;
  for (int i = 0; i < 40; ++i) {
    expected.push_back(std::string(i * 7 % 23, 'x') + std::to_string(i));
    text += "{\"text\": \"" + expected.back() + "\"}\n" + std::string(i % 3, '\n');
  }
  const auto path = write("a.jsonl", text), without_end = write("b.jsonl", text.substr(0, text.find_last_of('}') + 1));
  auto twice = expected;
  twice.insert(twice.end(), expected.begin(), expected.end());
  for (const std::int64_t part_bytes : {1, 2, 7, 16, 31, 100, 1 << 20}) {
    EXPECT_EQ(lines_of(JsonlRows({path, without_end}, {"text"}, part_bytes)), twice) << part_bytes;
  }
}

TEST_F(JsonLines, Name_line_and_problem_of_bad_rows) {
  const auto path = write("a.jsonl",
                          "{\"text\": \"good\"}\n{\"text\": 3}\n\n{\"txt\": \"x\"}\n[1]\n{\"text\": \"cut\n"
                          "{\"text\": \"\xFF\"}\n{\"text\": null}\n");
  const auto empty = write("b.jsonl", "");
  for (const std::int64_t part_bytes : {5, 1 << 20}) {
    EXPECT_THAT(lines_of(JsonlRows({path, empty}, {"text"}, part_bytes)),
                ElementsAre("good", AllOf(HasSubstr("line 2 of"), HasSubstr("number instead of text in column 'text'")),
                            AllOf(HasSubstr("line 4 of"), HasSubstr("no column 'text'")),
                            AllOf(HasSubstr("line 5 of"), HasSubstr("no object but array")),
                            AllOf(HasSubstr("line 6 of"), HasSubstr("no JSON")),
                            AllOf(HasSubstr("line 7 of"), HasSubstr("no JSON")),
                            AllOf(HasSubstr("line 8 of"), HasSubstr("null instead of text"))));
  }
}

TEST_F(JsonLines, Have_a_fingerprint_of_files_and_columns) {
  const auto path = write("a.jsonl", "{}");
  const std::string before = JsonlRows({path}, {"text"}).fingerprint();
  EXPECT_NE(JsonlRows({path}, {"text"}, JsonlRows::kPartBytes, ColumnContent::kJson).fingerprint(), before);
  EXPECT_EQ(JsonlRows({path}, {"text"}).fingerprint(), before);
  EXPECT_NE(JsonlRows({path}, {"prompt"}).fingerprint(), before);
  write("a.jsonl", "{ }");
  EXPECT_NE(JsonlRows({path}, {"text"}).fingerprint(), before);
}

TEST_F(JsonLines, Of_text_files_are_one_row_each) {
  const auto good = write("a.txt", "one\ntwo\n"), bad = write("b.txt", "ab\xC3"), empty = write("c.txt", "");
  EXPECT_THAT(lines_of(TextFileRows({good, empty, bad})),
              ElementsAre("one\ntwo\n", AllOf(HasSubstr("b.txt"), HasSubstr("not UTF-8, from byte 2"))));
}

// Python's json.dumps writes such numbers, and json.loads reads them.
TEST_F(JsonLines, May_have_numbers_that_Python_writes_and_JSON_lacks) {
  const auto path =
      write("a.jsonl",
            "{\"x\": NaN, \"text\": \"NaN \\\" -Infinity\"}\n{\"text\": \"a\", \"x\": [Infinity, -Infinity, NaN]}\n"
            "{\"x\": NaN, \"text\": NaN}\n{\"x\": NaN, \"y\": NaN, \"text\": \"cut}\n{\"text\": Nan}\n");
  EXPECT_THAT(lines_of(JsonlRows({path}, {"text"})),
              ElementsAre("NaN \" -Infinity", "a", HasSubstr("null instead of text"),
                          HasSubstr("at column 35 (invalid string: missing closing quote)"),
                          HasSubstr("at column 10 (invalid literal)")));
}

TEST_F(JsonLines, Have_an_identity_of_what_the_files_hold) {
  const std::string text = "{\"text\": \"" + std::string(200'000, 'a') + "\"}\n";
  const auto path = write("a.jsonl", text);
  std::filesystem::create_directories(folder / "copy");
  const auto copy = write("copy/b.jsonl", text);
  const std::string identity = JsonlRows({path}, {"text"}).content_fingerprint();
  EXPECT_EQ(JsonlRows({copy}, {"text"}).content_fingerprint(), identity);
  std::filesystem::last_write_time(path, std::filesystem::file_time_type());
  EXPECT_EQ(JsonlRows({path}, {"text"}).content_fingerprint(), identity);
  EXPECT_NE(JsonlRows({path}, {"other"}).content_fingerprint(), identity);
  EXPECT_NE(JsonlRows({path, copy}, {"text"}).content_fingerprint(), identity);
  std::string other = text;
  other[3 * text.size() / 15] = 'b';  // in one of the sampled blocks
  EXPECT_NE(JsonlRows({write("a.jsonl", other)}, {"text"}).content_fingerprint(), identity);
}

}  // namespace
}  // namespace d9d::jsonl_rows_test
