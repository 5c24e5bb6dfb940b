#include "d9d/base/io/bus_errors.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "d9d/base/io/mapped_file.h"

#include "tests/support/io_faults.h"

namespace d9d::bus_errors_test {
namespace {

void read_what_is_gone(const std::filesystem::path& path) {
  explain_bus_errors();
  const MappedFile file(path);
  std::filesystem::resize_file(path, 0);
  volatile const std::byte* bytes = file.bytes().data();
  (void)bytes[5000];
}

TEST(BusErrorsDeathTest, Name_the_file_that_became_shorter) {
  struct sigaction found {};
  ::sigaction(SIGBUS, nullptr, &found);
  if (found.sa_handler != SIG_DFL) GTEST_SKIP() << "a sanitizer handles the signal";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::filesystem::path path = test::fresh_directory("d") / "tokens.bin";
  std::ofstream(path) << std::string(10000, 'x');
  EXPECT_EXIT(read_what_is_gone(path), ::testing::KilledBySignal(SIGBUS),
              "expected to read '.*tokens.bin', got a file that became shorter");
}

}  // namespace
}  // namespace d9d::bus_errors_test
