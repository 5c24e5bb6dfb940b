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

TEST_F(MatchFiles, Rejects_an_empty_list) { EXPECT_THROW((void)match_files({}), ConfigError); }

}  // namespace
}  // namespace d9d::match_files_test
