#include "d9d/base/io/mapped_file.h"

#include <cstring>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/io/atomic_file.h"

#include "tests/support/io_faults.h"

namespace d9d::mapped_file_test {
namespace {
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, Shows_the_bytes_of_the_file) {
  const fs::path path = test::fresh_directory("d") / "a";
  write_file_atomically(path, "hello");
  EXPECT_EQ(text_of(MappedFile(path)), "hello");
}

TEST(MappedFile, Of_an_empty_file_has_no_bytes) {
  const fs::path path = test::fresh_directory("d") / "a";
  write_file_atomically(path, "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
}

TEST(MappedFile, Keeps_writes_from_the_file) {
  const fs::path path = test::fresh_directory("d") / "a";
  write_file_atomically(path, "hello");
  const MappedFile changed(path);
  std::memcpy(changed.bytes().data(), "J", 1);
  EXPECT_EQ(text_of(changed), "Jello");
  EXPECT_EQ(text_of(MappedFile(path)), "hello");
}

TEST(MappedFile, Names_path_and_cause_when_the_file_is_missing) {
  const fs::path path = test::fresh_directory("d") / "a";
  EXPECT_THAT(test::message_of<IoError>([&] { MappedFile file(path); }),
              AllOf(HasSubstr(path.string()), HasSubstr("No such file")));
}

TEST(MappedFile, Refuses_a_folder) {
  const fs::path directory = test::fresh_directory("d");
  EXPECT_THAT(test::message_of<IoError>([&] { MappedFile file(directory); }), HasSubstr("regular file"));
}

}  // namespace
}  // namespace d9d::mapped_file_test
