#include "d9d/base/process/line_process.h"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/system_error.h"

namespace d9d {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

// Attributes and actions of posix_spawnp(): the socket as standard input and output, no other open file, a process
// group, and the signals of a process that nobody has changed.
class SpawnSettings {
 public:
  explicit SpawnSettings(int socket) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_adddup2(&actions_, socket, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, socket, STDOUT_FILENO);
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    sigset_t signals;
    ::sigfillset(&signals);
    ::posix_spawnattr_setsigdefault(&attributes_, &signals);
    ::sigemptyset(&signals);
    ::posix_spawnattr_setsigmask(&attributes_, &signals);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  [[nodiscard]] const posix_spawn_file_actions_t* actions() const { return &actions_; }
  [[nodiscard]] const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

std::string text_of_status(int status) {
  return WIFSIGNALED(status) ? cat("killed by signal ", WTERMSIG(status)) : cat("exit code ", WEXITSTATUS(status));
}

}  // namespace

LineProcess::LineProcess(std::vector<std::string> command) {
  std::array<int, 2> ends = {-1, -1};
  D9D_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, IoError,
            "[base::process] expected a socket for '", command.front(), "', got ", system_error_text(errno),
            ". Close open files.");
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const SpawnSettings settings(ends[1]);
  const int error =
      ::posix_spawnp(&process_, arguments[0], settings.actions(), settings.attributes(), arguments.data(), environ);
  ::close(ends[1]);
  if (error != 0) ::close(ends[0]);
  D9D_CHECK(error == 0, IoError, "[base::process] expected to start '", command.front(), "', got ",
            system_error_text(error), ". Name a program that exists and may be executed.");
  socket_ = ends[0];
}

LineProcess::~LineProcess() {
  if (ending_.empty()) (void)wait_for_end(std::chrono::milliseconds(0));
  ::close(socket_);
}

void LineProcess::send(std::string_view line) {
  outbox_ += line;
  outbox_ += '\n';
}

void LineProcess::finish_input() {
  finishes_ = true;
  send_some();
}

std::optional<std::string> LineProcess::receive(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    if (const auto end = inbox_.find('\n', num_searched_); end != std::string::npos) {
      std::string line = inbox_.substr(0, end);
      inbox_.erase(0, end + 1);
      num_searched_ = 0;
      return line;
    }
    num_searched_ = inbox_.size();
    if (has_ended_) return std::nullopt;
    pollfd socket{.fd = socket_, .events = static_cast<short>(POLLIN | (outbox_.empty() ? 0 : POLLOUT)), .revents = 0};
    const int num_ready = ::poll(&socket, 1, static_cast<int>(until(deadline).count()));
    if (num_ready == 0) return std::nullopt;
    if ((socket.revents & POLLOUT) != 0) send_some();
    if ((socket.revents & ~POLLOUT) != 0) receive_some();
  }
}

void LineProcess::send_some() {
  const std::string_view left = std::string_view(outbox_).substr(num_sent_);
  const ssize_t size = ::send(socket_, left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (size > 0) num_sent_ += static_cast<std::size_t>(size);
  const bool is_closed = size < 0 && errno != EAGAIN && errno != EINTR;  // it reads no more, and its output will end
  if (is_closed) num_sent_ = outbox_.size();
  if (2 * num_sent_ >= outbox_.size()) outbox_.erase(0, std::exchange(num_sent_, 0));  // seldom: each moves the rest
  if (outbox_.empty() && finishes_) ::shutdown(socket_, SHUT_WR);
}

void LineProcess::receive_some() {
  std::array<char, 4096> bytes{};
  const ssize_t size = ::recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (size > 0) inbox_.append(bytes.data(), static_cast<std::size_t>(size));
  if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) has_ended_ = true;
}

std::string LineProcess::wait_for_end(std::chrono::milliseconds timeout) {
  if (!ending_.empty()) return ending_;
  const auto deadline = Clock::now() + timeout;
  while (!has_ended_ && until(deadline).count() > 0) (void)receive(until(deadline));
  int status = 0;
  while (::waitpid(process_, &status, WNOHANG) == 0) {  // its output may have ended before the process
    if (until(deadline).count() == 0) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, &status, 0);
      break;
    }
    ::poll(nullptr, 0, /*timeout=*/1);
  }
  has_ended_ = true;
  return ending_ = text_of_status(status);
}

std::vector<std::string> python_command(const std::string& interpreter) {
  return {interpreter, "-c",
          "import sys; sys.path = [path for path in sys.path if path]; import json; "
          "exec(compile(json.loads(sys.stdin.buffer.readline()), '<d9d>', 'exec'))"};
}

}  // namespace d9d
