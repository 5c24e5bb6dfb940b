// Ranks that are real processes: the test binary executes itself, with a filter that selects one of its programs.
//
// Example
//   TEST(DISABLED_Program, barrier) { end_program([] { ...; }); }
//   const Result result = run_program("barrier", {{"RANK", "0"}, ...}).wait();
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>

namespace d9d::test {

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
  // Until `text` stands in its stderr; false when it ended without, or after 30 s.
  [[nodiscard]] bool has_written(const std::string& text);
  [[nodiscard]] Result wait();  // at most 60 s, then it is killed

 private:
  bool read_some(std::chrono::milliseconds time);
  pid_t process_ = -1;
  int errors_descriptor_ = -1;
  std::string errors_;
  std::chrono::steady_clock::time_point begin_;
};

// The body of a program: reports errors as launch() does, and ends the process with the exit code.
[[noreturn]] void end_program(const std::function<int()>& body);

}  // namespace d9d::test
