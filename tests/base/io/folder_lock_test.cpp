#include "d9d/base/io/folder_lock.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/io_faults.h"

namespace d9d::folder_lock_test {
namespace {
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(FolderLock, Of_a_folder_in_use_is_refused_and_names_who_has_it) {
  const fs::path folder = test::fresh_directory("d");
  std::optional<FolderLock> lock(folder);
  EXPECT_THAT(test::message_of<IoError>([&] { FolderLock second(folder); }),
              AllOf(HasSubstr(folder.string()), HasSubstr("another part of this job at work in it")));
  lock.reset();
  EXPECT_TRUE(fs::is_empty(folder));
  EXPECT_NO_THROW(FolderLock{folder});
}

TEST(FolderLock, Of_a_folder_that_another_process_uses_names_it) {
  const fs::path folder = test::fresh_directory("d");
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(folder);
    (void)!::write(pipe[1], "x", 1);
    while (true) ::pause();
  }
  char told = 0;
  ASSERT_EQ(::read(pipe[0], &told, 1), 1);
  EXPECT_THAT(test::message_of<IoError>([&] { FolderLock second(folder); }), HasSubstr(cat("process ", child, " on ")));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  for (const int end : pipe) ::close(end);
}

TEST(FolderLock, Ends_with_a_process_that_is_killed) {
  const fs::path folder = test::fresh_directory("d");
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(folder);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(fs::exists(folder / ".lock"));
  EXPECT_NO_THROW(FolderLock{folder});
}

TEST(FolderLock, Of_a_folder_that_was_removed_and_made_again_leaves_the_new_one_alone) {
  const fs::path folder = test::fresh_directory("d");
  std::optional<FolderLock> lock(folder);
  fs::remove_all(folder);
  fs::create_directory(folder);
  const FolderLock second(folder);
  lock.reset();
  EXPECT_THROW(FolderLock{folder}, IoError);
}

TEST(FolderLock, Of_what_is_still_to_be_made_is_a_file_beside_it) {
  const fs::path folder = test::fresh_directory("d"), file = folder / "metrics.jsonl", lock_file = folder / "m.lock";
  std::optional<FolderLock> lock(std::in_place, file, lock_file);
  EXPECT_THAT(test::message_of<IoError>([&] { FolderLock second(file, lock_file); }), HasSubstr(file.string()));
  EXPECT_FALSE(fs::exists(file));
  lock.reset();
  EXPECT_TRUE(fs::is_empty(folder));
}

}  // namespace
}  // namespace d9d::folder_lock_test
