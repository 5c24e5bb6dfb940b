#include "d9d/base/io/atomic_file.h"

#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/io_faults.h"

namespace d9d::atomic_file_test {
namespace {
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int count_entries(const fs::path& directory) {
  return static_cast<int>(std::distance(fs::directory_iterator(directory), {}));
}

TEST(AtomicFile, Holds_all_bytes_after_commit) {
  const fs::path directory = test::fresh_directory("d");
  AtomicFile file(directory / "a.txt");
  file.write("first ");
  file.write("second");
  file.commit();
  EXPECT_EQ(content_of(directory / "a.txt"), "first second");
  EXPECT_EQ(count_entries(directory), 1);
}

TEST(AtomicFile, Is_absent_until_commit) {
  const fs::path path = test::fresh_directory("d") / "a.txt";
  AtomicFile file(path);
  file.write("half");
  EXPECT_FALSE(fs::exists(path));
}

TEST(AtomicFile, Replaces_an_existing_file_only_at_commit) {
  const fs::path path = test::fresh_directory("d") / "a.txt";
  write_file_atomically(path, "old");
  AtomicFile file(path);
  file.write("new");
  EXPECT_EQ(content_of(path), "old");
  file.commit();
  EXPECT_EQ(content_of(path), "new");
}

TEST(AtomicFile, Leaves_nothing_behind_when_abandoned) {
  const fs::path directory = test::fresh_directory("d");
  { AtomicFile(directory / "a.txt").write("half"); }
  EXPECT_EQ(count_entries(directory), 0);
}

TEST(AtomicFile, Lets_two_writers_of_one_name_work_side_by_side) {
  const fs::path path = test::fresh_directory("d") / "a.txt";
  AtomicFile first(path), second(path);
  first.write("first");
  second.write("second");
  first.commit();
  second.commit();
  EXPECT_EQ(content_of(path), "second");
}

TEST(AtomicFile, Names_path_and_cause_when_the_folder_is_missing) {
  const fs::path path = test::fresh_directory("d") / "missing" / "a.txt";
  EXPECT_THAT(test::message_of<IoError>([&] { AtomicFile file(path); }),
              AllOf(HasSubstr(path.string()), HasSubstr("No such file or directory")));
}

TEST(AtomicFile, Names_path_and_cause_when_the_folder_is_not_writable) {
  const fs::path directory = test::fresh_directory("d");
  fs::permissions(directory, fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_exec);
  test::run_unprivileged([&] {
    EXPECT_THAT(test::message_of<IoError>([&] { AtomicFile file(directory / "a.txt"); }),
                AllOf(HasSubstr((directory / "a.txt").string()), HasSubstr("Permission denied")));
  });
  fs::permissions(directory, fs::perms::owner_all);
}

TEST(AtomicFile, Keeps_the_old_file_and_no_temporary_when_a_write_fails) {
  const fs::path directory = test::fresh_directory("d");
  write_file_atomically(directory / "a.txt", "old");
  const test::FileSizeLimit limit(1000);
  EXPECT_THAT(test::message_of<IoError>([&] { write_file_atomically(directory / "a.txt", std::string(100'000, 'x')); }),
              AllOf(HasSubstr((directory / "a.txt").string()), HasSubstr("File too large")));
  EXPECT_EQ(content_of(directory / "a.txt"), "old");
  EXPECT_EQ(count_entries(directory), 1);
}

TEST(AtomicFile, Keeps_the_old_file_and_no_temporary_when_the_disk_is_full) {
  const fs::path directory = test::fresh_directory("d");
  const bool ran = test::run_on_small_disk(directory, [&] {
    write_file_atomically(directory / "a.txt", "old");
    EXPECT_THAT(
        test::message_of<IoError>([&] { write_file_atomically(directory / "a.txt", std::string(100'000, 'x')); }),
        AllOf(HasSubstr((directory / "a.txt").string()), HasSubstr("No space left on device")));
    EXPECT_EQ(content_of(directory / "a.txt"), "old");
    EXPECT_EQ(count_entries(directory), 1);
  });
  if (!ran) GTEST_SKIP() << "mounting is not allowed here";
}

}  // namespace
}  // namespace d9d::atomic_file_test
