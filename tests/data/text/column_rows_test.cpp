#include "d9d/data/text/column_rows.h"

#include <fstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/data/text/dataset_files.h"

#include "tests/data/source/source_test.h"
#include "tests/support/python.h"

namespace d9d::column_rows_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Texts = std::vector<std::string>;

// Files written by pyarrow and datasets, once for all tests.
class ColumnFiles : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder() = std::filesystem::path(::testing::TempDir()) / "d9d" / "column_files";
    std::filesystem::remove_all(folder());
    std::filesystem::create_directories(folder());
    const std::string printed = test::run_python("tests/data/text/column_oracle.py", {folder().string()});
    // Progress bars of datasets precede the JSON.
    const auto begin = printed.rfind("{\"texts\"");
    ASSERT_NE(begin, std::string::npos) << printed;
    written() = nlohmann::json::parse(printed.substr(begin, printed.find('\n', begin) - begin));
  }
  static std::filesystem::path& folder() {
    static std::filesystem::path folder;
    return folder;
  }
  static nlohmann::json& written() {
    static nlohmann::json written;
    return written;
  }
  static Texts texts(std::size_t begin = 0, std::size_t end = 2500) {
    const auto all = written().at("texts").get<Texts>();
    return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  static Texts rows_of(const std::vector<std::filesystem::path>& paths, ColumnFormat format,
                       const std::string& column = "text", ColumnContent content = ColumnContent::kText) {
    const ColumnRows rows(paths, format, {column}, content);
    Texts result;
    for (std::int64_t part = 0; part < rows.num_parts(); ++part) {
      rows.read(part, [&](const TextRow& row) {
        result.push_back(row.problem.empty() ? std::string(row.columns.at(0))
                                             : rows.place(part, row.row) + ": " + row.problem);
      });
    }
    return result;
  }
  static std::string error_of(const std::string& name, ColumnFormat format, const std::string& column = "text",
                              ColumnContent content = ColumnContent::kText) {
    return test::message_of<IoError>([&] { (void)rows_of({folder() / name}, format, column, content); });
  }
  static Texts parquet(const std::string& name, const std::string& column = "text") {
    return rows_of({folder() / name}, ColumnFormat::kParquet, column);
  }
  static Texts arrow(const std::string& name, const std::string& column = "text") {
    return rows_of({folder() / name}, ColumnFormat::kArrow, column);
  }
  static Texts split_of(const std::filesystem::path& dataset, const std::string& split) {
    const DatasetFiles files = dataset_files(dataset, split);
    return rows_of(files.paths, files.format == DatasetFormat::kArrow ? ColumnFormat::kArrow : ColumnFormat::kParquet);
  }
};

TEST_F(ColumnFiles, Of_Parquet_have_the_rows_that_pyarrow_wrote) {
  for (const auto* name : {"a.parquet", "snappy.parquet"}) {
    for (const auto* column : {"text", "large", "dictionary"}) EXPECT_EQ(parquet(name, column), texts()) << column;
  }
}

TEST_F(ColumnFiles, Of_Arrow_have_the_rows_that_pyarrow_wrote) {
  for (const auto* column : {"text", "large", "dictionary"})
    EXPECT_EQ(arrow("stream.arrow", column), texts()) << column;
  for (const auto* name : {"file.arrow", "lz4.arrow", "zstd.arrow"}) {
    for (const auto* column : {"text", "view"}) EXPECT_EQ(arrow(name, column), texts()) << name << column;
  }
}

TEST_F(ColumnFiles, Have_lists_and_structs_as_JSON) {
  for (const auto& [name, format] :
       {std::pair("chats.parquet", ColumnFormat::kParquet), std::pair("chats.arrow", ColumnFormat::kArrow)}) {
    for (const auto* column : {"chats", "json"}) {
      nlohmann::json chats = nlohmann::json::array(), expected = written().at("chats");
      for (const auto& text : rows_of({folder() / name}, format, column, ColumnContent::kJson)) {
        chats.push_back(nlohmann::json::parse(text));
      }
      for (nlohmann::json& chat : expected) {
        for (nlohmann::json& message : chat) {  // a column of structs has a null for each key that another row has
          if (message["name"].is_null() && column == std::string_view("chats")) message.erase("name");
        }
      }
      EXPECT_EQ(chats, expected) << name << column;
    }
    const Texts tools = rows_of({folder() / name}, format, "tools", ColumnContent::kJson);
    EXPECT_THAT(Texts(tools.begin(), tools.begin() + 3), ElementsAre("null", "[]", R"([{"name":"f"}])"));
    EXPECT_THAT(rows_of({folder() / name}, format, "nulls", ColumnContent::kJson), Each("null"));
    EXPECT_EQ(rows_of({folder() / name}, format, "nested", ColumnContent::kJson)[7], R"({"a":7,"b":[7,7]})");
    EXPECT_THAT(error_of(name, format, "day", ColumnContent::kJson),
                HasSubstr("date32[day] instead of lists and structs of texts in column 'day'"));
    const auto rich = nlohmann::json::parse(rows_of({folder() / name}, format, "rich", ColumnContent::kJson)[1])[0];
    EXPECT_EQ(rich["content"], "a");
    EXPECT_THAT(rich["at"].get<std::string>(), HasSubstr("2024-05-06 07:08:09"));
    EXPECT_EQ(rich["day"], "2024-05-06");
    EXPECT_EQ(rich["score"], 0.5);
    EXPECT_EQ(rich["votes"], -3);
    EXPECT_EQ(rich["flags"], 200);
    EXPECT_TRUE(rich["bytes"].is_string() && rich["tags"].is_string());
  }
  EXPECT_THAT(rows_of({folder() / "bad_chats.parquet"}, ColumnFormat::kParquet, "chats", ColumnContent::kJson),
              ElementsAre(R"([{"content":"ok"}])",
                          AllOf(HasSubstr("row 1 of"), HasSubstr("not UTF-8 in column 'chats'")), "null"));
}

TEST_F(ColumnFiles, Are_read_in_parts_of_row_groups_and_batches) {
  EXPECT_EQ(ColumnRows({folder() / "a.parquet"}, ColumnFormat::kParquet, {"text"}).num_parts(), 4);
  EXPECT_EQ(ColumnRows({folder() / "stream.arrow"}, ColumnFormat::kArrow, {"text"}).num_parts(), 9);
}

TEST_F(ColumnFiles, Name_rows_with_nulls_and_invalid_characters) {
  for (const auto& rows : {parquet("bad_rows.parquet"), arrow("bad_rows.arrow")}) {
    EXPECT_THAT(rows, ElementsAre("one", AllOf(HasSubstr("row 1 of"), HasSubstr("null instead of text")), "three", "ok",
                                  AllOf(HasSubstr("row 4 of"), HasSubstr("not UTF-8, from byte 1")), "z"));
  }
}

TEST_F(ColumnFiles, Name_columns_that_are_missing_or_of_something_else) {
  for (const auto& error :
       {error_of("a.parquet", ColumnFormat::kParquet, "txt"), error_of("stream.arrow", ColumnFormat::kArrow, "txt")}) {
    EXPECT_THAT(error, HasSubstr("no column 'txt' among id, nested, text"));
  }
  EXPECT_THAT(error_of("a.parquet", ColumnFormat::kParquet, "id"), HasSubstr("int64 instead of text in column 'id'"));
  EXPECT_THAT(error_of("stream.arrow", ColumnFormat::kArrow, "nested"),
              HasSubstr("instead of text in column 'nested'"));
}

TEST_F(ColumnFiles, Name_files_that_are_cut_or_something_else) {
  EXPECT_THAT(error_of("cut.parquet", ColumnFormat::kParquet),
              AllOf(HasSubstr("cut.parquet'"), HasSubstr("no whole Parquet")));
  EXPECT_THAT(error_of("cut.arrow", ColumnFormat::kArrow), AllOf(HasSubstr("cut.arrow'"), HasSubstr("no whole Arrow")));
  EXPECT_THAT(error_of("a.parquet", ColumnFormat::kArrow),
              AllOf(HasSubstr("no whole Arrow"), HasSubstr("a Parquet file. Read it as data of kind \"parquet\"")));
  EXPECT_THAT(error_of("stream.arrow", ColumnFormat::kParquet), HasSubstr("no whole Parquet"));
}

TEST_F(ColumnFiles, Without_rows_have_none) { EXPECT_THAT(parquet("empty.parquet"), IsEmpty()); }

TEST_F(ColumnFiles, Name_the_first_row_of_a_damaged_row_group_and_read_the_others) {
  const Texts rows = parquet("damaged.parquet");
  const Texts before = texts(0, 700), after = texts(1400, 2500);
  ASSERT_GE(rows.size(), 1801U);
  EXPECT_EQ(Texts(rows.begin(), rows.begin() + 700), before);
  EXPECT_EQ(Texts(rows.end() - 1100, rows.end()), after);
  EXPECT_THAT(rows[rows.size() - 1101], AllOf(HasSubstr("damaged.parquet"), HasSubstr("damaged rows")));
}

TEST_F(ColumnFiles, Of_saved_datasets_are_found_by_split) {
  EXPECT_EQ(split_of(folder() / "saved", "train"), texts());
  EXPECT_EQ(split_of(folder() / "splits", "train"), texts(0, 100));
  EXPECT_EQ(split_of(folder() / "splits", "test"), texts(100, 150));
  EXPECT_EQ(split_of(folder() / "one", "test"), texts(20, 30));
  const Texts all = texts();
  EXPECT_EQ(split_of(folder() / "selected", "train"), (Texts{all[5], all[3], all[1]}));
}

TEST_F(ColumnFiles, Of_the_hub_and_of_the_cache_of_load_dataset_are_found_by_split) {
  EXPECT_EQ(split_of(folder() / "hub", "train"), texts(0, 20));
  EXPECT_EQ(split_of(folder() / "hub", "test"), texts(20, 30));
  const std::filesystem::path cached = written().at("cached").get<std::string>();
  EXPECT_EQ(split_of(cached, "train"), texts(0, 20));
  EXPECT_EQ(split_of(cached, "test"), texts(20, 30));
}

// The rules of data_files.py in the datasets library.
TEST_F(ColumnFiles, Are_of_the_split_that_datasets_finds_in_their_names) {
  const auto names_of = [](const std::vector<std::string>& there, const std::string& split) {
    const auto dataset = test::fresh_directory("names");
    for (const std::string& name : there) std::ofstream(dataset / name) << "rows";
    Texts names;
    for (const auto& path : dataset_files(dataset, split).paths) names.push_back(path.filename());
    return names;
  };
  const auto shard = [](const std::string& split) { return split + "-00000-of-00001.parquet"; };
  const std::vector<std::string> chats{shard("train_sft"), shard("train_gen"), shard("test_sft")};
  EXPECT_THAT(names_of(chats, "train_sft"), ElementsAre(shard("train_sft")));
  EXPECT_THAT(test::message_of<IoError>([&] { (void)names_of(chats, "train"); }), HasSubstr("of split 'train'"));
  const std::vector<std::string> cached{"chats_200k-train_sft.arrow", "chats_200k-train.arrow"};
  EXPECT_THAT(names_of(cached, "train"), ElementsAre("chats_200k-train.arrow"));
  const std::vector<std::string> others{"train_1.jsonl", "train2.jsonl", "training.jsonl", "test3.jsonl",
                                        "my_val.jsonl"};
  EXPECT_THAT(names_of(others, "train"), ElementsAre("train2.jsonl", "train_1.jsonl", "training.jsonl"));
  EXPECT_THAT(names_of(others, "test"), ElementsAre("test3.jsonl"));
  EXPECT_THAT(names_of(others, "validation"), ElementsAre("my_val.jsonl"));
  EXPECT_THAT(names_of({"v1.jsonl", "v10.jsonl"}, "v1"), ElementsAre("v1.jsonl"));
  EXPECT_THAT(names_of({"b.jsonl", "a.jsonl"}, "train"), ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_THAT(names_of({"cache-1a2b.arrow", "rows.arrow"}, "train"), ElementsAre("rows.arrow"));
}

TEST_F(ColumnFiles, Of_datasets_that_are_not_here_are_refused_with_the_remedy) {
  EXPECT_THAT(test::message_of<ConfigError>([] { (void)dataset_files("wikitext", "train"); }),
              AllOf(HasSubstr("'wikitext'"), HasSubstr("save_to_disk")));
  EXPECT_THAT(test::message_of<IoError>([] { (void)dataset_files(folder() / "splits", "validation"); }),
              AllOf(HasSubstr("'validation'"), HasSubstr("train")));
  EXPECT_THAT(test::message_of<IoError>([] { (void)dataset_files(folder() / "hub", "validation"); }),
              HasSubstr("'validation'"));
  EXPECT_THAT(test::message_of<IoError>([] { (void)dataset_files(folder() / "one", "train"); }),
              AllOf(HasSubstr("expected a split 'train'"), HasSubstr("got only \"test\"")));
}

TEST_F(ColumnFiles, Of_datasets_whose_description_is_damaged_are_refused_by_name) {
  const auto copy = folder() / "damaged";
  std::filesystem::create_directories(copy);
  for (const auto* content : {"{", "{\"_data_files\": 3}", "{}"}) {
    std::filesystem::copy(folder() / "saved", copy, std::filesystem::copy_options::overwrite_existing);
    std::ofstream(copy / "state.json") << content;
    EXPECT_THAT(test::message_of<IoError>([&] { (void)dataset_files(copy, "train"); }), HasSubstr("state.json"));
  }
}

}  // namespace
}  // namespace d9d::column_rows_test
