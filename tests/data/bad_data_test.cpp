// A problem in the data of a job gives one error that names file and row, or the row is skipped and counted.
#include <filesystem>
#include <fstream>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/data/build/token_stream.h"

#include "tests/support/byte_tokenizer.h"
#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::bad_data_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct BadFile {
  const char* kind;
  const char* file;
  const char* problem;
  const char* place;        // {} stands for the file
  const char* keys = "{}";  // more keys of the source
  int num_rows = 1;         // rows that are skipped with bad_rows = skip
};

class BadData : public ::testing::TestWithParam<BadFile> {
 protected:
  static void SetUpTestSuite() {
    static bool is_done = false;  // files are written once for all suites
    if (std::exchange(is_done, true)) return;
    std::filesystem::remove_all(folder());
    std::filesystem::create_directories(folder());
    test::run_python("tests/data/make_bad_files.py", {folder().string()});
    write("good.jsonl", "{\"text\": \"first\"}\n{\"text\": \"second\"}\n");
    write("none.jsonl", "");
    write("text.jsonl", "{\"text\": \"one\"}\nnothing\n");
    write("null.jsonl", "{\"text\": \"one\"}\n{\"text\": null}\n");
    write("first.jsonl", "nothing\n{\"text\": \"one\"}\n");
    write("cut.jsonl", "{\"text\": \"one\"}\n{\"text\": \"half");
    write("nan.jsonl", "{\"text\": \"one\", \"x\": NaN}\n{\"text\": \"NaN\", \"x\": -Infinity}\n{\"text\": NaN}\n");
    write("surrogate.jsonl", "{\"text\": \"one\"}\n{\"text\": \"a\\ud83d\"}\n");
    write("blank.jsonl", "\n  \n");
    write("array.jsonl", "[{\"text\": \"one\"}, {\"text\": \"two\"}]\n");
    write("array_of_lines.jsonl", "\n[\n{\"text\": \"one\"},\n{\"text\": \"two\"}\n]\n");
    write("object.jsonl", "{\n  \"text\": \"one\"\n}\n");
    write("object_nan.jsonl", "{\n  \"text\": \"one\",\n  \"x\": [NaN, 2]\n}\n");
    write("table.jsonl", "id,text\n1,one\n2,two\n");
    write("invalid.jsonl", "{\"text\": \"one\"}\n{\"text\": \"a\xff\"}\n");
    write("long.jsonl", "{\"text\": \"one\"}\n{\"text\": \"" + std::string(40, 'x') + "\"}\n");
    write("good.txt", "first");
    write("invalid.txt", "a\xff");
    write("none.txt", "");
    write("long.txt", std::string(40, 'x'));
    write("good.bin", "first.second.");
    write("outside.bin", "first.se\xf0ond.");
    write("long.bin", "one." + std::string(40, 'x') + ".");
    write("tokenizer.json", test::byte_tokenizer());
  }
  static std::filesystem::path folder() { return std::filesystem::path(::testing::TempDir()) / "d9d" / "bad_data"; }
  static void write(const std::string& name, std::string_view bytes) {
    std::ofstream(folder() / name, std::ios::binary) << bytes;
  }

  // Reads the good and the bad file once, as documents of at most 30 positions.
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
    const auto stream = build_token_stream(
        parse_record<DataConfig>(json, {.keys = "data"}),
        {.vocabulary_size = kind == "tokens" ? 200 : 257, .stream = {.log = logger, .shared_log = logger}});
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
  std::ranges::replace(name, '-', '_');
  return name + (info.param.keys == std::string("{}") ? "" : "_" + std::to_string(info.index));
}

// Rows that are not text.
constexpr const char* kNumber = R"({"column": "number"})";
constexpr const char* kMissing = R"({"column": "txt"})";
const auto kBadRows = ::testing::Values(
    BadFile{"parquet", "damaged.parquet", "damaged rows", "in row 100 of {}", "{}", 100},
    BadFile{"parquet", "null.parquet", "null instead of text in column 'text'", "in row 1 of {}"},
    BadFile{"parquet", "nulls.parquet", "null instead of text in column 'text'", "in row 0 of {}", "{}", 2},
    BadFile{"parquet", "invalid.parquet", "not UTF-8, from byte 1 on", "in row 1 of {}"},
    BadFile{"arrow", "damaged.arrow", "damaged rows of column 'text'", "in row 100 of {}", "{}", 100},
    BadFile{"arrow", "null.arrow", "null instead of text in column 'text'", "in row 1 of {}"},
    BadFile{"arrow", "nulls.arrow", "null instead of text in column 'text'", "in row 0 of {}", "{}", 2},
    BadFile{"arrow", "invalid.arrow", "not UTF-8, from byte 1 on", "in row 1 of {}"},
    BadFile{"jsonl", "text.jsonl", "no JSON at column 2 (invalid literal)", "in line 2 of {}"},
    BadFile{"jsonl", "first.jsonl", "no JSON at column 2 (invalid literal)", "in line 1 of {}"},
    BadFile{"jsonl", "cut.jsonl", "no JSON at column 15 (invalid string: missing closing quote)", "in line 2 of {}"},
    BadFile{"jsonl", "null.jsonl", "null instead of text in column 'text'", "in line 2 of {}"},
    BadFile{"jsonl", "nan.jsonl", "null instead of text in column 'text'", "in line 3 of {}"},
    BadFile{"jsonl", "invalid.jsonl", "no JSON at column 12 (invalid string: ill-formed UTF-8 byte)",
            "in line 2 of {}"},
    BadFile{"jsonl", "surrogate.jsonl", "surrogate U+D800..U+DBFF must be followed", "in line 2 of {}"},
    BadFile{"jsonl", "good.jsonl", "no column 'txt'", "in line 1 of {}", kMissing, 2},
    BadFile{"text", "invalid.txt", "not UTF-8, from byte 1 on", "in {}"});
INSTANTIATE_TEST_SUITE_P(Rows, BadData, kBadRows, name_of);
INSTANTIATE_TEST_SUITE_P(Ids, BadData, ::testing::Values(BadFile{"tokens", "outside.bin", "got 240", "{}"}), name_of);

// The policy bad_rows may skip these rows.
class BadRowsOfData : public BadData {};

TEST_P(BadRowsOfData, Are_left_out_and_counted_where_the_policy_says_so) {
  if (GetParam().keys == std::string(kMissing)) {
    EXPECT_THAT(test::message_of<IoError>([&] { read({{"bad_rows", "skip"}}); }), HasSubstr("but 2 bad ones"));
    return;
  }
  read({{"bad_rows", "skip"}});
  EXPECT_GE(num_documents, 1);
  EXPECT_THAT(log, AllOf(HasSubstr("skipped " + std::to_string(GetParam().num_rows) + " bad rows"),
                         HasSubstr(GetParam().problem), HasSubstr(place())));
}
INSTANTIATE_TEST_SUITE_P(Rows, BadRowsOfData, kBadRows, name_of);

// A problem of a whole file is an error under every policy, and its message names no row.
class BadFilesOfData : public BadData {};

TEST_P(BadFilesOfData, Are_errors_whatever_happens_to_rows) {
  for (const char* policy : {"refuse", "skip"}) {
    const std::string error = test::message_of<IoError>([&] {
      read(GetParam().kind == std::string("tokens") ? nlohmann::json::object() : nlohmann::json{{"bad_rows", policy}});
    });
    EXPECT_THAT(error, AllOf(HasSubstr(GetParam().problem), HasSubstr(place()), Not(HasSubstr("bad_rows"))));
  }
}
INSTANTIATE_TEST_SUITE_P(
    Columns, BadFilesOfData,
    ::testing::Values(BadFile{"parquet", "cut.parquet", "no whole Parquet file", "in {}"},
                      BadFile{"parquet", "none.parquet", "no whole Parquet file", "in {}"},
                      BadFile{"parquet", "pointer.parquet", "a pointer of Git LFS", "{}"},
                      BadFile{"parquet", "good.parquet", "int64 instead of text in column 'number'", "in {}", kNumber},
                      BadFile{"parquet", "good.parquet", "no column 'txt' among text, number", "in {}", kMissing},
                      BadFile{"parquet", "a_ids.parquet", "ids of tokens are data of kind \"tokens\"", "in {}",
                              R"({"column": "number"})"},
                      BadFile{"arrow", "cut.arrow", "no whole Arrow file", "in {}"},
                      BadFile{"arrow", "none.arrow", "no whole Arrow file", "in {}"},
                      BadFile{"arrow", "good.arrow", "int64 instead of text in column 'number'", "in {}", kNumber},
                      BadFile{"arrow", "good.arrow", "no column 'txt' among text, number", "in {}", kMissing}),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Lines, BadFilesOfData,
    ::testing::Values(BadFile{"jsonl", "array.jsonl", "got an array", "in {}"},
                      BadFile{"jsonl", "array_of_lines.jsonl", "got an array", "in {}"},
                      BadFile{"jsonl", "object.jsonl", "an object over several lines", "in {}"},
                      BadFile{"jsonl", "object_nan.jsonl", "an object over several lines", "in {}"},
                      BadFile{"jsonl", "table.jsonl", "lines that do not begin with '{'", "in {}"}),
    name_of);
// The files are written by the programs that usually write such formats.
INSTANTIATE_TEST_SUITE_P(Forms, BadFilesOfData,
                         ::testing::Values(BadFile{"jsonl", "gzip.jsonl", "compressed by gzip", "{}"},
                                           BadFile{"jsonl", "zstd.jsonl", "compressed by zstd", "{}"},
                                           BadFile{"jsonl", "lz4.jsonl", "compressed by lz4", "{}"},
                                           BadFile{"jsonl", "xz.jsonl", "compressed by xz", "{}"},
                                           BadFile{"jsonl", "bz2.jsonl", "compressed by bzip2", "{}"},
                                           BadFile{"jsonl", "zip.jsonl", "a zip archive", "{}"},
                                           BadFile{"jsonl", "tar.jsonl", "a tar archive", "{}"},
                                           BadFile{"jsonl", "utf-16.jsonl", "text in UTF-16", "{}"},
                                           BadFile{"jsonl", "utf-16-le.jsonl", "text in UTF-16", "{}"},
                                           BadFile{"jsonl", "utf-16-be.jsonl", "text in UTF-16", "{}"},
                                           BadFile{"jsonl", "utf-32.jsonl", "text in UTF-32", "{}"},
                                           BadFile{"jsonl", "parquet.jsonl", "a Parquet file", "{}"},
                                           BadFile{"jsonl", "arrow.jsonl", "an Arrow file", "{}"},
                                           BadFile{"text", "gzip.txt", "compressed by gzip", "{}"},
                                           BadFile{"text", "utf-16.txt", "text in UTF-16", "{}"},
                                           BadFile{"tokens", "npy.bin", "an array of NumPy", "{}"},
                                           BadFile{"tokens", "gzip.bin", "compressed by gzip", "{}"},
                                           BadFile{"tokens", "wide.bin",
                                                   "at most 0 at every second place of the first 64", "{}",
                                                   R"({"dtype": "uint16", "end_of_document": null})"},
                                           BadFile{"tokens", "wider.bin", "as ids of 8 bytes have", "{}",
                                                   R"({"dtype": "int32", "end_of_document": null})"}),
                         name_of);

// A part file without rows is not an error.
class EmptyFilesOfData : public BadData {};

TEST_P(EmptyFilesOfData, Have_no_rows_and_are_refused_only_if_all_are_empty) {
  read();
  EXPECT_GE(num_documents, 1);
  const nlohmann::json alone = {{"paths", {(folder() / GetParam().file).string()}}};
  EXPECT_THAT(test::message_of<IoError>([&] { read(alone); }), HasSubstr(GetParam().problem));
}
INSTANTIATE_TEST_SUITE_P(Files, EmptyFilesOfData,
                         ::testing::Values(BadFile{"parquet", "empty.parquet", "at least one row of text", ""},
                                           BadFile{"parquet", "no_columns.parquet", "at least one row of text", ""},
                                           BadFile{"arrow", "empty.arrow", "at least one row of text", ""},
                                           BadFile{"arrow", "no_columns.arrow", "at least one row of text", ""},
                                           BadFile{"jsonl", "none.jsonl", "got 1 empty ones, the first", ""},
                                           BadFile{"jsonl", "blank.jsonl", "at least one row of text", ""},
                                           BadFile{"text", "none.txt", "got 1 empty ones, the first", ""}),
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
