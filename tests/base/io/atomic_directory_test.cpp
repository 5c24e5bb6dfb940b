#include "d9d/base/io/atomic_directory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/io/atomic_file.h"

#include "tests/support/io_faults.h"

namespace d9d::atomic_directory_test {
namespace {
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  return names;
}

TEST(AtomicDirectory, Appears_with_all_its_files_at_commit) {
  const fs::path parent = test::fresh_directory("d");
  AtomicDirectory directory(parent / "export");
  write_file_atomically(directory.staging() / "a.txt", "a");
  EXPECT_FALSE(fs::exists(parent / "export"));
  directory.commit();
  EXPECT_THAT(names_in(parent), ::testing::ElementsAre("export"));
  EXPECT_THAT(names_in(parent / "export"), ::testing::ElementsAre("a.txt"));
}

TEST(AtomicDirectory, Accepts_a_trailing_slash) {
  const fs::path parent = test::fresh_directory("d");
  AtomicDirectory(parent / "export/").commit();
  EXPECT_THAT(names_in(parent), ::testing::ElementsAre("export"));
}

TEST(AtomicDirectory, Leaves_nothing_behind_when_abandoned) {
  const fs::path parent = test::fresh_directory("d");
  {
    AtomicDirectory directory(parent / "export");
    write_file_atomically(directory.staging() / "a.txt", "a");
  }
  EXPECT_TRUE(fs::is_empty(parent));
}

TEST(AtomicDirectory, Takes_the_place_of_an_empty_folder) {
  const fs::path parent = test::fresh_directory("d");
  fs::create_directory(parent / "export");
  AtomicDirectory directory(parent / "export");
  write_file_atomically(directory.staging() / "a.txt", "a");
  directory.commit();
  EXPECT_TRUE(fs::exists(parent / "export" / "a.txt"));
}

TEST(AtomicDirectory, Refuses_a_folder_with_entries_before_anything_is_written) {
  const fs::path parent = test::fresh_directory("d");
  fs::create_directory(parent / "export");
  write_file_atomically(parent / "export" / "mine.txt", "mine");
  EXPECT_THAT(test::message_of<IoError>([&] { AtomicDirectory directory(parent / "export"); }),
              HasSubstr((parent / "export").string()));
  EXPECT_THAT(names_in(parent), ::testing::ElementsAre("export"));
}

TEST(AtomicDirectory, Takes_the_place_of_the_folder_that_a_link_leads_to) {
  const fs::path parent = test::fresh_directory("d");
  fs::create_directories(parent / "disk" / "runs");
  fs::create_directory_symlink(parent / "disk" / "runs", parent / "export");
  AtomicDirectory directory(parent / "export");
  write_file_atomically(directory.staging() / "a.txt", "a");
  directory.commit();
  EXPECT_TRUE(fs::is_symlink(parent / "export"));
  EXPECT_THAT(names_in(parent / "disk"), ::testing::ElementsAre("runs"));
  EXPECT_THAT(names_in(parent / "export"), ::testing::ElementsAre("a.txt"));
}

TEST(AtomicDirectory, Refuses_at_once_what_a_rename_could_not_replace) {
  const fs::path parent = test::fresh_directory("d");
  fs::create_directory_symlink(parent / "nowhere", parent / "export");
  EXPECT_THAT(test::message_of<IoError>([&] { AtomicDirectory directory(parent / "export"); }),
              AllOf(HasSubstr((parent / "export").string()), HasSubstr("a link that leads nowhere")));
  fs::create_directory(parent / "disk");
  const bool could_mount = test::run_on_small_disk(parent / "disk", [&] {
    EXPECT_THAT(test::message_of<IoError>([&] { AtomicDirectory directory(parent / "disk"); }),
                AllOf(HasSubstr((parent / "disk").string()), HasSubstr("a mount point")));
  });
  EXPECT_THAT(names_in(parent), ::testing::UnorderedElementsAre("disk", "export"));
  if (!could_mount) GTEST_SKIP() << "the system forbids mounting";
}

TEST(AtomicDirectory, Refuses_a_file_of_that_name) {
  const fs::path parent = test::fresh_directory("d");
  write_file_atomically(parent / "export", "a file");
  EXPECT_THROW(AtomicDirectory(parent / "export"), IoError);
}

TEST(AtomicDirectory, Replaces_a_folder_when_its_owner_asks) {
  const fs::path parent = test::fresh_directory("d");
  fs::create_directory(parent / "export");
  write_file_atomically(parent / "export" / "old.txt", "old");
  AtomicDirectory directory(parent / "export", ExistingDirectory::kReplace);
  write_file_atomically(directory.staging() / "new.txt", "new");
  EXPECT_THAT(names_in(parent / "export"), ::testing::ElementsAre("old.txt"));
  directory.commit();
  EXPECT_THAT(names_in(parent), ::testing::ElementsAre("export"));
  EXPECT_THAT(names_in(parent / "export"), ::testing::ElementsAre("new.txt"));
}

TEST(AtomicDirectory, Names_path_and_cause_when_the_parent_is_missing) {
  const fs::path path = test::fresh_directory("d") / "missing" / "export";
  EXPECT_THAT(test::message_of<IoError>([&] { AtomicDirectory directory(path); }),
              AllOf(HasSubstr(path.string()), HasSubstr("No such file or directory")));
}

// What a process does before it is killed. Returns when it has ended.
void killed_after(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(AtomicDirectory, Removes_what_a_killed_process_left_and_nothing_of_one_that_lives) {
  const fs::path parent = test::fresh_directory("d");
  killed_after([&] {
    auto* const directory = new AtomicDirectory(parent / "export");
    write_file_atomically(directory->staging() / "half.txt", "half");
  });
  ASSERT_EQ(names_in(parent).size(), 1);
  fs::create_directory(parent / "export.tmp-other");
  const AtomicDirectory alive(parent / "export");
  const AtomicDirectory second(parent / "export");
  EXPECT_THAT(names_in(parent),
              ::testing::UnorderedElementsAre("export.tmp-other", std::string(alive.staging().filename()),
                                              std::string(second.staging().filename())));
}

TEST(AtomicDirectory, Ends_a_replacement_that_was_killed_between_its_two_renames) {
  const fs::path parent = test::fresh_directory("d");
  fs::create_directory(parent / "export");
  write_file_atomically(parent / "export" / "old.txt", "old");
  killed_after([&] {
    auto* const directory = new AtomicDirectory(parent / "export", ExistingDirectory::kReplace);
    write_file_atomically(directory->staging() / "new.txt", "new");
    fs::rename(parent / "export", directory->staging().string() + ".replaced");
  });
  clear_remains(parent / "export");
  EXPECT_THAT(names_in(parent), ::testing::ElementsAre("export"));
  EXPECT_THAT(names_in(parent / "export"), ::testing::ElementsAre("new.txt"));
}

}  // namespace
}  // namespace d9d::atomic_directory_test
