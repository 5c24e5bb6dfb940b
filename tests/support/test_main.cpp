// The entry point of every test binary.
#include <gtest/gtest.h>

#include "tests/support/program.h"

int main(int argc, char** argv) {
  if (const auto exit_code = d9d::test::run_declared_program()) return *exit_code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
