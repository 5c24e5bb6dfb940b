// Runs a Python script of the test tree with .venv's interpreter, as the oracle of a test.
//
// Example
//   d9d::test::run_python("tests/model_state/io/safetensors_oracle.py", {"write", path.string()});
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

namespace d9d::test {

// `script` is relative to the repository. Returns its standard output; fails the test, with the output, unless it exits
// with 0.
inline std::string run_python(const std::string& script, const std::vector<std::string>& arguments) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();  // null while a suite is set up
  std::string caller = test == nullptr ? "suite" : std::string(test->test_suite_name()) + "_" + test->name();
  std::ranges::replace(caller, '/', '_');  // of parameterised tests
  const std::string log = ::testing::TempDir() + "d9d_python_" + caller + "_" + std::to_string(::getpid()) + ".log";
  std::string command = "'" D9D_TEST_PYTHON "' '" D9D_SOURCE_DIR "/" + script + "'";
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  const int status = std::system((command + " >'" + log + "' 2>&1").c_str());
  std::ifstream file(log);
  std::string output{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(status, 0) << command << "\n" << output;
  return output;
}

}  // namespace d9d::test
