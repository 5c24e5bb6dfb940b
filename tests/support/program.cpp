#include "tests/support/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "d9d/base/check.h"

namespace d9d::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kVariable = "D9D_TEST_PROGRAM";

std::map<std::string, std::function<int()>>& programs() {
  static std::map<std::string, std::function<int()>> all;
  return all;
}

}  // namespace

TestProgram::TestProgram(const std::string& name, std::function<int()> body) { programs()[name] = std::move(body); }

std::optional<int> run_declared_program() {
  const char* const name = std::getenv(kVariable);
  if (name == nullptr) return std::nullopt;
  return programs().at(name)();
}

Program::Program(const std::string& name, const Variables& variables) : begin_(Clock::now()) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw IoError("pipe");
  process_ = ::fork();
  if (process_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(ends[1], STDERR_FILENO);
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    for (const auto& [key, value] : variables) ::setenv(key.c_str(), value.c_str(), 1);
    ::setenv(kVariable, name.c_str(), 1);
    ::execl("/proc/self/exe", name.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  errors_descriptor_ = ends[0];
}

Program::~Program() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ::close(errors_descriptor_);
}

void Program::kill(int signal) const { ::kill(process_, signal); }

bool Program::read_some(std::chrono::milliseconds time) {
  pollfd waiting{.fd = errors_descriptor_, .events = POLLIN, .revents = 0};
  if (::poll(&waiting, 1, static_cast<int>(time.count())) != 1) return false;
  char buffer[4096];
  const ssize_t size = ::read(errors_descriptor_, buffer, sizeof(buffer));
  if (size <= 0) return false;
  errors_.append(buffer, static_cast<std::size_t>(size));
  return true;
}

bool Program::has_written(const std::string& text) {
  while (errors_.find(text) == std::string::npos) {
    if (!read_some(std::chrono::seconds(30))) return false;
  }
  return true;
}

Result Program::wait() {
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (Clock::now() < deadline && read_some(std::chrono::seconds(60))) {
  }
  if (Clock::now() >= deadline) kill(SIGKILL);
  int status = 0;
  ::waitpid(process_, &status, 0);
  process_ = -1;
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .errors = errors_,
          .seconds = std::chrono::duration<double>(Clock::now() - begin_).count()};
}

}  // namespace d9d::test
