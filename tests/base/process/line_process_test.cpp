#include "d9d/base/process/line_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::line_process_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;

constexpr std::chrono::milliseconds kLong{60'000};  // a minute: nothing here takes a second

TEST(LineProcess, Answers_lines_in_their_order) {
  LineProcess cat({"/bin/cat"});
  cat.send("one");
  cat.send("");
  cat.send("two");
  EXPECT_THAT(cat.receive(kLong), Optional(std::string("one")));
  EXPECT_THAT(cat.receive(kLong), Optional(std::string("")));
  EXPECT_THAT(cat.receive(kLong), Optional(std::string("two")));
  EXPECT_EQ(cat.receive(std::chrono::milliseconds(0)), std::nullopt);
  EXPECT_FALSE(cat.has_ended());
  cat.finish_input();
  EXPECT_EQ(cat.wait_for_end(kLong), "exit code 0");
}

TEST(LineProcess, Takes_more_than_a_socket_holds_without_waiting) {
  LineProcess cat({"/bin/cat"});
  const std::string line(1 << 16, 'x');
  for (int i = 0; i < 64; ++i) cat.send(line);
  for (int i = 0; i < 64; ++i) EXPECT_THAT(cat.receive(kLong), Optional(line));
  cat.send("last");
  cat.finish_input();
  EXPECT_THAT(cat.receive(kLong), Optional(std::string("last")));
}

// With a search or a copy of the whole for each part that a socket takes it lasts minutes.
TEST(LineProcess, Passes_on_a_long_line_in_time_that_grows_with_its_length_only) {
  LineProcess cat({"/bin/cat"});
  const std::string line(std::size_t{128} << 20, 'x');
  cat.send(line);
  const auto answer = cat.receive(kLong);
  EXPECT_TRUE(answer.has_value() && *answer == line);
}

TEST(LineProcess, Finds_a_program_by_its_name) {
  LineProcess cat({"cat"});
  cat.send("here");
  EXPECT_THAT(cat.receive(kLong), Optional(std::string("here")));
}

TEST(LineProcess, Tells_how_the_program_ended_and_survives_lines_after_that) {
  LineProcess shell({"/bin/sh", "-c", "read line; exit 7"});
  shell.send("go");
  EXPECT_EQ(shell.receive(kLong), std::nullopt);
  EXPECT_TRUE(shell.has_ended());
  EXPECT_EQ(shell.wait_for_end(kLong), "exit code 7");
  shell.send("nobody reads this");
  EXPECT_EQ(shell.receive(kLong), std::nullopt);
}

TEST(LineProcess, Kills_what_does_not_end) {
  LineProcess stopped({"/bin/sh", "-c", "kill -STOP $$"});
  EXPECT_EQ(stopped.wait_for_end(std::chrono::milliseconds(0)), "killed by signal 9");
  pid_t process = 0;
  { process = LineProcess({"/bin/cat"}).process(); }
  EXPECT_EQ(::kill(process, 0), -1);
}

TEST(LineProcess, Gives_a_process_group_no_open_files_and_default_signals) {
  const auto before = std::signal(SIGINT, SIG_IGN);
  const int open_file = ::dup(STDERR_FILENO);  // without O_CLOEXEC
  LineProcess shell({"/bin/sh", "-c",
                     "ps -o pgid= -p $$ | tr -d ' '; ls /proc/$$/fd | tr '\\n' ' '; echo; kill -INT $$; echo ignored"});
  EXPECT_THAT(shell.receive(kLong), Optional(std::to_string(shell.process())));
  EXPECT_THAT(shell.receive(kLong), Optional(std::string("0 1 2 ")));
  EXPECT_EQ(shell.wait_for_end(kLong), "killed by signal 2");
  ::close(open_file);
  (void)std::signal(SIGINT, before);
}

TEST(LineProcess, Names_a_program_that_cannot_be_started) {
  EXPECT_THAT([] { LineProcess missing({"/no/program"}); },
              ::testing::ThrowsMessage<IoError>(AllOf(HasSubstr("/no/program"), HasSubstr("No such file"))));
}

TEST(PythonCommand, Runs_the_script_of_the_first_line) {
  LineProcess python(python_command(D9D_TEST_PYTHON));
  python.send(R"py("import sys\nfor line in sys.stdin.buffer: print(line.decode().upper(), end='', flush=True)")py");
  python.send("hello");
  EXPECT_THAT(python.receive(kLong), Optional(std::string("HELLO")));
}

TEST(PythonCommand, Imports_nothing_from_the_working_directory) {
  const std::string script = R"py("import sys; print('' in sys.path, flush=True)")py";
  for (const char* const is_safe : {"", "1"}) {  // of Python: "1" leaves the directory out from the start
    ::setenv("PYTHONSAFEPATH", is_safe, /*overwrite=*/1);
    LineProcess python(python_command(D9D_TEST_PYTHON));
    python.send(script);
    EXPECT_THAT(python.receive(kLong), Optional(std::string("False"))) << is_safe;
  }
  ::unsetenv("PYTHONSAFEPATH");
}

}  // namespace
}  // namespace d9d::line_process_test
