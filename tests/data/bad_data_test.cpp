// What is wrong with the data of a job is one error with file and row, or is left out and counted.
#include <filesystem>
#include <fstream>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/data/token_stream.h"

#include "tests/support/byte_tokenizer.h"
#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::bad_data_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct BadFile {
  const char* kind;
  const char* file;
  const char* problem;
  const char* place;        // {} is the file
  const char* keys = "{}";  // more keys of the source
};

class BadData : public ::testing::TestWithParam<BadFile> {
 protected:
  static void SetUpTestSuite() {
    static bool is_done = false;  // once for all suites
    if (std::exchange(is_done, true)) return;
    std::filesystem::remove_all(folder());
    std::filesystem::create_directories(folder());
    test::run_python("tests/data/make_bad_files.py", {folder().string()});
    write("good.jsonl", "{\"text\": \"first\"}\n{\"text\": \"second\"}\n");
    write("none.jsonl", "");
    write("text.jsonl", "{\"text\": \"one\"}\nnothing\n");
    write("null.jsonl", "{\"text\": \"one\"}\n{\"text\": null}\n");
    write("invalid.jsonl", "{\"text\": \"one\"}\n{\"text\": \"a\xff\"}\n");
    write("long.jsonl", "{\"text\": \"one\"}\n{\"text\": \"" + std::string(40, 'x') + "\"}\n");
    write("good.txt", "first");
    write("invalid.txt", "a\xff");
    write("none.txt", "");
    write("long.txt", std::string(40, 'x'));
    write("good.bin", "first.second.");
    write("outside.bin", "first.se\xf0ond.");
    write("long.bin", "one." + std::string(40, 'x') + ".");
    write("none.bin", "");
    write("tokenizer.json", test::byte_tokenizer());
  }
  static std::filesystem::path folder() { return std::filesystem::path(::testing::TempDir()) / "d9d" / "bad_data"; }
  static void write(const std::string& name, std::string_view bytes) {
    std::ofstream(folder() / name, std::ios::binary) << bytes;
  }

  // Reads a pass of the good file and the bad one, as documents of at most 30 positions.
  void read(const nlohmann::json& more = nlohmann::json::object()) {
    const std::string kind = GetParam().kind, file = GetParam().file;
    const std::string good = "good" + std::filesystem::path(file).extension().string();
    nlohmann::json json = {{"kind", kind},           {"sequence_length", 30}, {"view", {{"kind", "documents"}}},
                           {"global_batch_size", 1}, {"microbatch_size", 1},  {"num_workers", 2}};
    if (kind == "tokens") {
      json.update({{"path", (folder() / file).string()}, {"dtype", "uint8"}, {"end_of_document", '.'}});
    } else {
      json.update({{"paths", {(folder() / good).string(), (folder() / file).string()}},
                   {"end_of_document", "<s>"},
                   {"tokenizer", (folder() / "tokenizer.json").string()},
                   {"cache", (folder() / "cache").string()}});
    }
    json.update(nlohmann::json::parse(GetParam().keys));
    json.update(more);
    const Logger logger = Logger().with_sink([this](std::string_view line) { log += line; });
    const auto stream =
        build_token_stream(parse_record<DataConfig>(json, {.keys = "data"}),
                           {.vocabulary_size = kind == "tokens" ? 200 : 257, .stream = {.log = logger}});
    while (stream->next()) ++num_documents;
  }
  std::string place() const {
    std::string text = GetParam().place;
    const auto at = text.find("{}");
    return text.replace(at, 2, "'" + (folder() / GetParam().file).string() + "'");
  }

  std::string log;
  std::int64_t num_documents = 0;
};

TEST_P(BadData, Is_one_error_with_file_and_row) {
  EXPECT_THAT(test::message_of<IoError>([&] { read(); }), AllOf(HasSubstr(GetParam().problem), HasSubstr(place())));
}

std::string name_of(const ::testing::TestParamInfo<BadFile>& info) {
  std::string name = std::string(info.param.kind) + "_" + info.param.file;
  std::ranges::replace(name, '.', '_');
  return name + (info.param.keys == std::string("{}") ? "" : "_" + std::to_string(info.index));
}

// Files of which a row, or all of a file, is no text.
constexpr const char* kNumber = R"({"column": "number"})";
constexpr const char* kMissing = R"({"column": "txt"})";
INSTANTIATE_TEST_SUITE_P(
    Columns, BadData,
    ::testing::Values(BadFile{"parquet", "cut.parquet", "no whole Parquet file", "in {}"},
                      BadFile{"parquet", "none.parquet", "no whole Parquet file", "in {}"},
                      BadFile{"parquet", "damaged.parquet", "damaged rows", "in row 100 of {}"},
                      BadFile{"parquet", "empty.parquet", "no rows", "in {}"},
                      BadFile{"parquet", "good.parquet", "int64 instead of text in column 'number'", "in {}", kNumber},
                      BadFile{"parquet", "good.parquet", "no column 'txt' among text, number", "in {}", kMissing},
                      BadFile{"parquet", "null.parquet", "null instead of text in column 'text'", "in row 1 of {}"},
                      BadFile{"parquet", "invalid.parquet", "not UTF-8, from byte 1 on", "in row 1 of {}"},
                      BadFile{"arrow", "cut.arrow", "no whole Arrow file", "in {}"},
                      BadFile{"arrow", "none.arrow", "no whole Arrow file", "in {}"},
                      BadFile{"arrow", "damaged.arrow", "damaged rows of column 'text'", "in row 100 of {}"},
                      BadFile{"arrow", "empty.arrow", "no rows", "in {}"},
                      BadFile{"arrow", "good.arrow", "int64 instead of text in column 'number'", "in {}", kNumber},
                      BadFile{"arrow", "good.arrow", "no column 'txt' among text, number", "in {}", kMissing},
                      BadFile{"arrow", "null.arrow", "null instead of text in column 'text'", "in row 1 of {}"},
                      BadFile{"arrow", "invalid.arrow", "not UTF-8, from byte 1 on", "in row 1 of {}"}),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Lines, BadData,
    ::testing::Values(BadFile{"jsonl", "none.jsonl", "no bytes", "in line 1 of {}"},
                      BadFile{"jsonl", "text.jsonl", "a line that is no JSON", "in line 2 of {}"},
                      BadFile{"jsonl", "null.jsonl", "null instead of text in column 'text'", "in line 2 of {}"},
                      BadFile{"jsonl", "invalid.jsonl", "a line that is no JSON", "in line 2 of {}"},
                      BadFile{"jsonl", "good.jsonl", "no column 'txt'", "in line 1 of {}", kMissing},
                      BadFile{"text", "none.txt", "no bytes", "in {}"},
                      BadFile{"text", "invalid.txt", "not UTF-8, from byte 1 on", "in {}"}),
    name_of);
INSTANTIATE_TEST_SUITE_P(Ids, BadData,
                         ::testing::Values(BadFile{"tokens", "none.bin", "got an empty file", "{}"},
                                           BadFile{"tokens", "outside.bin", "got 240", "{}"}),
                         name_of);

// Those that a policy may leave out.
class BadRowsOfData : public BadData {};

TEST_P(BadRowsOfData, Are_left_out_and_counted_where_the_policy_says_so) {
  read({{"bad_rows", "skip"}});
  EXPECT_GE(num_documents, 3);
  EXPECT_THAT(log, AllOf(HasSubstr("skipped 1 bad rows"), HasSubstr(GetParam().problem), HasSubstr(place())));
}
INSTANTIATE_TEST_SUITE_P(
    Rows, BadRowsOfData,
    ::testing::Values(BadFile{"parquet", "damaged.parquet", "damaged rows", "in row 100 of {}"},
                      BadFile{"parquet", "null.parquet", "null instead of text in column 'text'", "in row 1 of {}"},
                      BadFile{"arrow", "invalid.arrow", "not UTF-8, from byte 1 on", "in row 1 of {}"},
                      BadFile{"jsonl", "text.jsonl", "a line that is no JSON", "in line 2 of {}"}),
    name_of);

class LongDocumentsOfData : public BadData {};

TEST_P(LongDocumentsOfData, Are_one_error_with_file_and_row_or_left_out_and_counted) {
  EXPECT_THAT(test::message_of<IoError>([&] { read(); }),
              AllOf(HasSubstr("documents of at most 30 positions"), HasSubstr(GetParam().problem), HasSubstr(place())));
  read({{"view", {{"kind", "documents"}, {"long_documents", "skip"}}}});
  EXPECT_THAT(log, HasSubstr("1 of " + std::to_string(num_documents + 1) + " documents have more than 30 positions"));
}
INSTANTIATE_TEST_SUITE_P(Documents, LongDocumentsOfData,
                         ::testing::Values(BadFile{"parquet", "long.parquet", "got 41 tokens", "in row 2 of {}"},
                                           BadFile{"arrow", "long.arrow", "got 41 tokens", "in row 2 of {}"},
                                           BadFile{"jsonl", "long.jsonl", "got 41 tokens", "in line 2 of {}"},
                                           BadFile{"text", "long.txt", "got 41 tokens", "in {}"},
                                           BadFile{"tokens", "long.bin", "got 41 tokens", "{}"}),
                         name_of);

}  // namespace
}  // namespace d9d::bad_data_test
