#include "d9d/data/source/match_files.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/io_faults.h"

namespace d9d::match_files_test {
namespace {

using ::testing::ElementsAre;

class MatchFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder / "sub.txt");  // a folder that matches *.txt
    for (const char* name : {"b.txt", "a.txt", "c.md"}) std::ofstream(folder / name) << name;
  }

  std::vector<std::string> names(const std::vector<std::string>& patterns) const {
    std::vector<std::string> paths;
    for (const std::string& pattern : patterns) paths.push_back(folder / pattern);
    std::vector<std::string> result;
    for (const auto& file : match_files(paths)) result.push_back(file.filename());
    return result;
  }

  const std::filesystem::path folder = std::filesystem::canonical(test::fresh_directory("files"));
};

TEST_F(MatchFiles, Sorts_what_patterns_match_and_skips_folders) {
  EXPECT_THAT(names({"*.txt"}), ElementsAre("a.txt", "b.txt"));
}

TEST_F(MatchFiles, Names_a_file_that_a_clone_without_git_lfs_does_not_have) {
  std::ofstream(folder / "a.txt") << "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 131\n";
  EXPECT_THAT(test::message_of<IoError>([&] { (void)names({"*.txt"}); }),
              ::testing::AllOf(::testing::HasSubstr("a.txt'"), ::testing::HasSubstr("git lfs pull")));
}

TEST_F(MatchFiles, Lists_a_file_once_though_two_patterns_or_a_link_reach_it) {
  std::filesystem::create_symlink(folder / "a.txt", folder / "z.txt");
  EXPECT_THAT(names({"c.md", "*.txt", "a.txt", "./b.txt"}), ElementsAre("a.txt", "b.txt", "c.md"));
}

TEST_F(MatchFiles, Sorts_links_by_their_own_names_and_keeps_them) {
  std::filesystem::create_directory(folder / "links");
  std::filesystem::create_symlink(folder / "b.txt", folder / "links" / "0");
  std::filesystem::create_symlink(folder / "a.txt", folder / "links" / "1");
  EXPECT_THAT(match_files({folder / "links" / "*"}), ElementsAre(folder / "links" / "0", folder / "links" / "1"));
}

TEST_F(MatchFiles, Names_the_pattern_that_matches_no_file) {
  try {
    (void)names({"*.txt", "*.bin"});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("*.bin"));
  }
}

// The datasets library and others write such names.
TEST_F(MatchFiles, Takes_what_exists_by_its_name_before_a_pattern) {
  std::filesystem::create_directory(folder / "[data] v1");
  for (const char* name : {"[data] v1/part[0].txt", "[data] v1/part0.txt", "[data] v1/a*b.txt", "[data] v1/aab.txt"}) {
    std::ofstream(folder / name) << name;
  }
  EXPECT_THAT(names({"[data] v1/part[0].txt"}), ElementsAre("part[0].txt"));
  EXPECT_THAT(names({"[data] v1/a*b.txt"}), ElementsAre("a*b.txt"));
  EXPECT_THAT(names({"[data] v1/part[0-9].txt"}), ElementsAre("part0.txt"));
  EXPECT_THAT(names({"[data] v1/*.txt"}), ElementsAre("a*b.txt", "aab.txt", "part0.txt", "part[0].txt"));
  EXPECT_THAT(names({"[[]data] v1/part*"}), ElementsAre("part0.txt", "part[0].txt"));
}

TEST_F(MatchFiles, Says_what_may_have_been_meant) {
  const auto error = [&](const std::string& pattern) {
    return test::message_of<ConfigError>([&] { (void)names({pattern}); });
  };
  EXPECT_THAT(error("sub.txt"), ::testing::HasSubstr("It is a folder: name the files in it"));
  EXPECT_THAT(error("part[0].txt"), ::testing::HasSubstr("[ ] are a pattern"));
}

TEST_F(MatchFiles, Rejects_an_empty_list) { EXPECT_THROW((void)match_files({}), ConfigError); }

}  // namespace
}  // namespace d9d::match_files_test
