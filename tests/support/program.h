// Real processes: the test binary executes itself and runs one of the programs that its files declare.
//
// Example
//   const TestProgram kAnswer("answer", [] { return 42; });
//   TEST(Answer, Is_42) { EXPECT_EQ(Program("answer", {{"VARIABLE", "value"}}).wait().exit_code, 42); }
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace d9d::test {

// Declares a program at namespace scope. Its exit code is the return value of `body`.
struct TestProgram {
  TestProgram(const std::string& name, std::function<int()> body);
};

// Runs the declared program if this process was started as Program(name, ...), instead of tests; otherwise none.
[[nodiscard]] std::optional<int> run_declared_program();

struct Result {
  int exit_code = 0;   // 128 + signal when killed
  std::string errors;  // what it wrote to stderr
  double seconds = 0;
};

// A running program. The destructor kills it.
class Program {
 public:
  using Variables = std::map<std::string, std::string>;
  Program(const std::string& name, const Variables& variables);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] pid_t process() const { return process_; }
  void kill(int signal) const;
  // Waits until its stderr contains `text`; false if the program ends without it, or after 30 s.
  [[nodiscard]] bool has_written(const std::string& text);
  [[nodiscard]] Result wait();  // at most 60 s, then the program is killed

 private:
  bool read_some(std::chrono::milliseconds time);
  pid_t process_ = -1;
  int errors_descriptor_ = -1;
  std::string errors_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace d9d::test
