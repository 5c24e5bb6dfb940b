#include "d9d/data/source/source_files.h"

#include <gmock/gmock.h>

#include "d9d/base/check.h"

#include "tests/data/source/source_test.h"

namespace d9d::source_files_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SourceFiles : public test::SourceTest {
 protected:
  static std::vector<std::string> names_of(const std::vector<std::filesystem::path>& files) {
    std::vector<std::string> names;
    for (const auto& file : files) names.push_back(file.filename());
    return names;
  }
  std::vector<std::string> names(const std::vector<std::string>& patterns) {
    std::vector<std::string> paths;
    for (const std::string& pattern : patterns) paths.push_back(folder / pattern);
    return names_of(source_files(paths, log));
  }

  std::string said;
  const Logger log = Logger().with_sink([this](std::string_view line) { said += std::string(line) + "\n"; });
};

TEST_F(SourceFiles, That_two_patterns_name_are_read_once_and_told) {
  for (const char* name : {"a.txt", "b.txt", "c.txt"}) write(name, name);
  EXPECT_THAT(names({"a.txt", "b.*"}), ElementsAre("a.txt", "b.txt"));
  EXPECT_THAT(said, IsEmpty());
  EXPECT_THAT(names({"*.txt", "b.txt"}), ElementsAre("a.txt", "b.txt", "c.txt"));
  EXPECT_THAT(said, AllOf(HasSubstr("b.txt'"), HasSubstr("it is read once")));
}

TEST_F(SourceFiles, Of_which_one_is_not_in_the_folder_are_told) {
  for (const char* name : {"train-00000-of-00003.parquet", "train-00002-of-00003-0a1b.parquet",
                           "test-00000-of-00001.parquet", "c4.00001-of-00002.json", "c4.00002-of-00002.json"}) {
    write(name, "rows");
  }
  EXPECT_THAT(names({"test*", "c4*"}),
              ElementsAre("c4.00001-of-00002.json", "c4.00002-of-00002.json", "test-00000-of-00001.parquet"));
  EXPECT_THAT(said, IsEmpty());
  (void)names({"train*"});
  EXPECT_THAT(said, AllOf(HasSubstr("WARNING"), HasSubstr("train-00000-of-00003.parquet' is one of 3 files"),
                          HasSubstr("1 is not in its folder, the first with number 1")));
}

TEST_F(SourceFiles, That_were_not_chosen_are_not_missed) {
  write("train-00000-of-00002.parquet", "rows");
  write("train-00001-of-00002.parquet", "rows");
  EXPECT_THAT(names({"train-00001*"}), ElementsAre("train-00001-of-00002.parquet"));
  EXPECT_THAT(said, IsEmpty());
}

TEST_F(SourceFiles, That_are_empty_are_left_out_and_told_unless_all_are) {
  const std::vector<std::filesystem::path> files{write("a", ""), write("b", "b"), write("c", ""), write("d", "d")};
  EXPECT_THAT(names_of(without_empty(files, log)), ElementsAre("b", "d"));
  EXPECT_THAT(said, AllOf(HasSubstr("2 of 4 files are empty"), HasSubstr("/a'")));
  EXPECT_THAT(test::message_of<IoError>([&] {
                (void)without_empty({files[0], files[2]}, log);
              }),
              AllOf(HasSubstr("got 2 empty ones"), HasSubstr("/a'")));
}

TEST_F(SourceFiles, Of_Megatron_are_named_by_prefix_or_by_either_file) {
  for (const char* name :
       {"c4_text_document.bin", "c4_text_document.idx", "v1.5_text_document.bin", "v1.5_text_document.idx"})
    write(name, name);
  const auto prefixes = [&](const std::string& pattern) {
    return names_of(megatron_prefixes({folder / pattern}, log));
  };
  for (const char* pattern : {"c4_text_document", "c4_text_document.idx", "c4_text_document.bin", "c4*", "c4*.bin"}) {
    EXPECT_THAT(prefixes(pattern), ElementsAre("c4_text_document")) << pattern;
  }
  EXPECT_THAT(prefixes("v1.5_text_document"), ElementsAre("v1.5_text_document"));
  EXPECT_THAT(prefixes("*"), ElementsAre("c4_text_document", "v1.5_text_document"));
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)prefixes("none"); }), HasSubstr("none.idx' to match a file"));
}

}  // namespace
}  // namespace d9d::source_files_test
