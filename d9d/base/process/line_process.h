// A program of another language beside this one, which is spoken to in lines: JSON lines, a request and its answer.
//
// Example
//   d9d::LineProcess renderer(d9d::python_command("/usr/bin/python3"));
//   renderer.send(nlohmann::json(script).dump());  // python_command(): the first line is the script
//   renderer.send(R"({"template": "..."})");
//   const std::optional<std::string> answer = renderer.receive(std::chrono::seconds(10));
//
// The program has the other end of a socket as its standard input and output, this process's standard error, and a
// process group of its own: a terminal's Ctrl-C does not reach it. Of the open files of this process it has none.
// Local; each object may be used by one thread at a time. No function but receive() and wait_for_end() waits.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace d9d {

class LineProcess {
 public:
  // Starts the program: its path, or a name to find in PATH, then its arguments. Throws IoError if it cannot be
  // started.
  explicit LineProcess(std::vector<std::string> command);
  // Kills the program unless it has ended.
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  // Adds a line to those that receive() sends. `line` has no line end.
  void send(std::string_view line);
  // No line follows: the program finds the end of its input after those that were sent.
  void finish_input();
  // Sends what the program takes until it has written a line, which is returned without its end. None: no line within
  // `timeout`, or the program has closed its output (has_ended()).
  [[nodiscard]] std::optional<std::string> receive(std::chrono::milliseconds timeout);

  [[nodiscard]] bool has_ended() const { return has_ended_; }
  // Waits until the program has ended, and kills it after `timeout`. Returns how it ended: "exit code 1".
  std::string wait_for_end(std::chrono::milliseconds timeout);
  [[nodiscard]] pid_t process() const { return process_; }

 private:
  void send_some();
  void receive_some();

  pid_t process_ = -1;
  int socket_ = -1;
  std::string outbox_;  // not sent yet, but for its first num_sent_ bytes
  std::size_t num_sent_ = 0;
  std::string inbox_;             // received; the last line may be incomplete
  std::size_t num_searched_ = 0;  // bytes of inbox_ that have no line end
  std::string ending_;            // empty: not waited for
  bool finishes_ = false;         // finish_input() has been called
  bool has_ended_ = false;        // its output has ended
};

// The command that runs the script which it finds, as a JSON string, in the first line of its input. The script reads
// the next lines from sys.stdin.buffer.
[[nodiscard]] std::vector<std::string> python_command(const std::string& interpreter);

}  // namespace d9d
