#include "d9d/base/io/append_file.h"

#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::append_file_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::filesystem::path fresh_folder(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "append_file" / name;
  std::filesystem::remove_all(folder);
  return folder;
}

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(AppendFile, Creates_the_folder_and_goes_on_at_the_end_of_an_existing_file) {
  const auto path = fresh_folder("grow") / "deep" / "file";
  AppendFile(path).write("one\n");
  AppendFile(path).write("two\n");
  EXPECT_EQ(content(path), "one\ntwo\n");
}

TEST(AppendFile, That_was_removed_is_an_error) {
  const auto path = fresh_folder("removed") / "file";
  AppendFile file(path);
  file.write("one\n");
  std::filesystem::remove(path);
  EXPECT_THAT([&] { file.write("two\n"); },
              ::testing::ThrowsMessage<IoError>(AllOf(HasSubstr(path.string()), HasSubstr("removed meanwhile"))));
}

TEST(AppendFile, Hands_bytes_to_the_system_at_once) {
  const auto path = fresh_folder("at_once") / "file";
  AppendFile file(path);
  file.write("one\n");
  EXPECT_EQ(content(path), "one\n");
}

TEST(AppendFile, Names_the_path_and_the_reason_when_the_disk_is_full) {
  AppendFile file("/dev/full");
  try {
    file.write("x");
    FAIL() << "no error";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/dev/full"), HasSubstr("No space left on device")));
  }
}

TEST(AppendFile, Names_the_path_when_a_file_stands_where_a_folder_should) {
  const auto path = fresh_folder("blocked") / "file";
  AppendFile(path).write("x");
  try {
    AppendFile(path / "inner");
    FAIL() << "no error";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr((path / "inner").string()));
  }
}

TEST(AppendFile, Refuses_writes_after_close) {
  AppendFile file(fresh_folder("closed") / "file");
  file.close();
  file.close();
  EXPECT_THROW(file.write("x"), StateError);
}

}  // namespace
}  // namespace d9d::append_file_test
