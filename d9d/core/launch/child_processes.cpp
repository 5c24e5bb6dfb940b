#include "d9d/core/launch/child_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "d9d/base/check.h"
#include "d9d/base/environment.h"
#include "d9d/base/log.h"
#include "d9d/base/system_error.h"
#include "d9d/core/launch/tcp.h"

namespace d9d {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kErrorFileVariable = "D9D_ERROR_FILE";  // its value is the descriptor of an open file

// While it lives, SIGINT, SIGTERM and SIGCHLD are blocked and can be fetched with take().
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&signals_, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  [[nodiscard]] const sigset_t& before() const { return before_; }
  // Waits for the next signal and returns it; none at the deadline.
  [[nodiscard]] std::optional<int> take(Clock::time_point deadline) const {
    const auto left = std::max(std::chrono::nanoseconds(0), std::chrono::nanoseconds(deadline - Clock::now()));
    const timespec wait{.tv_sec = left.count() / 1'000'000'000, .tv_nsec = left.count() % 1'000'000'000};
    const int signal = ::sigtimedwait(&signals_, nullptr, &wait);
    return signal > 0 ? std::optional(signal) : std::nullopt;
  }

 private:
  sigset_t signals_{};
  sigset_t before_{};
};

// An array of strings in the form that exec takes.
class StringArray {
 public:
  explicit StringArray(std::vector<std::string> strings) : strings_(std::move(strings)) {
    for (std::string& string : strings_) pointers_.push_back(string.data());
    pointers_.push_back(nullptr);
  }
  [[nodiscard]] char* const* data() const { return pointers_.data(); }

 private:
  std::vector<std::string> strings_;
  std::vector<char*> pointers_;
};

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> arguments;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\0', begin), text.size());
    arguments.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return arguments;
}

// An unnamed file for a child's error message; -1 if none can be created.
int open_error_file() { return ::memfd_create("d9d_error", MFD_CLOEXEC); }

std::string text_of(int file) {
  std::string text(4096, '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

std::vector<std::string> environment_of_rank(std::int64_t rank, std::int64_t num_ranks, std::uint16_t port,
                                             int error_file) {
  const std::map<std::string, std::string> own = {{kErrorFileVariable, std::to_string(error_file)},
                                                  {"RANK", std::to_string(rank)},
                                                  {"WORLD_SIZE", std::to_string(num_ranks)},
                                                  {"LOCAL_RANK", std::to_string(rank)},
                                                  {"LOCAL_WORLD_SIZE", std::to_string(num_ranks)},
                                                  {"GROUP_RANK", "0"},
                                                  {"GROUP_WORLD_SIZE", "1"},
                                                  {"MASTER_ADDR", "127.0.0.1"},
                                                  {"MASTER_PORT", std::to_string(port)},
                                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                  {"TORCHELASTIC_RESTART_COUNT", "0"}};
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!own.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : own) result.push_back(cat(name, "=", value));
  return result;
}

// Runs in the forked child: calls only functions that are allowed between fork and exec.
[[noreturn]] void become_rank(pid_t parent, const sigset_t& signals, int error_file, char* const* arguments,
                              char* const* environment) {
  ::fcntl(error_file, F_SETFD, 0);  // stays open across exec
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // lint: allow(process-exit): the parent has died already
  ::setpgid(0, 0);                        // so that a terminal's Ctrl-C reaches only the parent, which passes it on
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  ::execve("/proc/self/exe", arguments, environment);
  ::_exit(127);  // lint: allow(process-exit): nothing may run in a forked child
}

struct Child {
  std::int64_t rank;
  pid_t process;
  int error_file;
  std::optional<int> status = {};  // from waitpid(); none: still running
};

// launch() of a child whose program a signal has stopped early returns this code.
bool is_stopped(int status) {
  return WIFEXITED(status) && (WEXITSTATUS(status) == 128 + SIGINT || WEXITSTATUS(status) == 128 + SIGTERM);
}
bool is_success(int status) { return (WIFEXITED(status) && WEXITSTATUS(status) == 0) || is_stopped(status); }
bool is_sufferer(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == kPeerFailedExitCode; }
int exit_code_of(int status) {
  if (is_sufferer(status)) return 1;  // no rank that failed by itself was found
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string description_of(int status) {
  if (WIFEXITED(status)) return cat("ended with exit code ", WEXITSTATUS(status));
  return cat("was killed by signal ", WTERMSIG(status), " (", ::strsignal(WTERMSIG(status)), ")");
}

class Supervisor {
 public:
  explicit Supervisor(const ChildProcessOptions& options) : options_(options) {}
  ~Supervisor() {
    kill_all(SIGKILL);
    for (Child& child : children_) {
      if (!child.status) ::waitpid(child.process, nullptr, 0);
      ::close(child.error_file);
    }
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  void start(std::uint16_t port) {
    const pid_t parent = ::getpid();
    const StringArray arguments(own_arguments());
    for (std::int64_t rank = 0; rank < options_.num_ranks; ++rank) {
      const int error_file = open_error_file();
      const StringArray environment(environment_of_rank(rank, options_.num_ranks, port, error_file));
      const pid_t process = ::fork();
      if (process == 0) become_rank(parent, signals_.before(), error_file, arguments.data(), environment.data());
      D9D_CHECK(process > 0, IoError, "[core::child_processes] expected to start rank ", rank, " of ",
                options_.num_ranks, ", got: ", system_error_text(errno), ". Raise the limit of processes (ulimit -u).");
      ::setpgid(process, process);  // the child does so too: the group must exist before anyone signals it
      children_.push_back({.rank = rank, .process = process, .error_file = error_file});
    }
  }

  int wait() {
    while (num_running() > 0) {
      const std::optional<int> signal = signals_.take(std::min(end_at_, kill_at_));
      if (signal == SIGINT || signal == SIGTERM) {
        interrupt_ = signal;
        kill_all(*signal);
      }
      reap();
      look_for_cause();
      act_on_time();
    }
    if (!cause_) return code_of_success();
    return interrupt_ ? 128 + *interrupt_ : exit_code_of(*cause_->status);
  }

 private:
  [[nodiscard]] std::ptrdiff_t num_running() const {
    return std::count_if(children_.begin(), children_.end(), [](const Child& child) { return !child.status; });
  }

  [[nodiscard]] int code_of_success() const {
    const auto stopped = std::ranges::find_if(children_, [](const Child& child) { return is_stopped(*child.status); });
    return stopped == children_.end() ? 0 : WEXITSTATUS(*stopped->status);
  }

  void kill_all(int signal) {
    for (const Child& child : children_) {
      if (child.status) continue;
      ::kill(-child.process, signal);
      ::kill(-child.process, SIGCONT);  // a stopped process would not receive the signal
    }
  }

  // Kills children that are stopped. If one were woken to end by itself, it would first wait for its devices.
  void kill_stopped() {
    for (const Child& child : children_) {
      if (child.status) continue;
      siginfo_t info{};
      const auto id = static_cast<id_t>(child.process);
      if (::waitid(P_PID, id, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
        ::kill(-child.process, SIGKILL);
      }
    }
  }

  void reap() {
    for (Child& child : children_) {
      if (child.status) continue;
      siginfo_t info{};
      if (::waitid(P_PID, static_cast<id_t>(child.process), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid == 0) {
        continue;
      }
      ::kill(-child.process, SIGKILL);  // its descendants, while its process id is still reserved
      int status = 0;
      ::waitpid(child.process, &status, 0);
      child.status = status;
      if (is_success(status)) continue;
      if (!first_failed_) first_failed_ = &child;
      if (!is_sufferer(status) && !first_cause_) first_cause_ = &child;
    }
  }

  // Determines the child to report. A child that is only affected by another one's failure may end first, so this waits
  // for the cause up to `patience`.
  void look_for_cause() {
    if (cause_ || !first_failed_) return;
    if (!first_cause_ && num_running() > 0 && Clock::now() < end_at_) {
      if (end_at_ == kNever) end_at_ = Clock::now() + options_.patience;
      return;
    }
    cause_ = first_cause_ != nullptr ? first_cause_ : first_failed_;
    report();
    kill_stopped();
    kill_all(SIGTERM);
    end_at_ = kNever;
    kill_at_ = Clock::now() + options_.patience;
  }

  // Reports one rank, since most failing ranks have the same error: the cause, or else a rank that left an error
  // message. After a signal from outside, writes a line only if a rank left a message.
  void report() const {
    const auto tells = [](const Child& child) { return !text_of(child.error_file).empty(); };
    const auto told = tells(*cause_) ? children_.begin() + (cause_ - children_.data())
                                     : std::find_if(children_.begin(), children_.end(), tells);
    if (told != children_.end()) {
      write_line_to_stderr(
          cat("error: rank ", told->rank, " of ", options_.num_ranks, ": ", text_of(told->error_file)));
    } else if (!interrupt_) {
      write_line_to_stderr(cat("error: [core::launch] rank ", cause_->rank, " of ", options_.num_ranks, " (process ",
                               cause_->process, ") ", description_of(*cause_->status),
                               num_running() > 0 ? "; the other ranks are stopped." : "."));
    }
  }

  void act_on_time() {
    if (Clock::now() < kill_at_) return;
    kill_all(SIGKILL);
    kill_at_ = kNever;
  }

  // Far in the future, but near enough that a wait for it does not overflow.
  const Clock::time_point kNever = Clock::now() + std::chrono::hours(24 * 365);

  ChildProcessOptions options_;
  BlockedSignals signals_;
  std::vector<Child> children_;
  std::optional<int> interrupt_;
  const Child* first_failed_ = nullptr;
  const Child* first_cause_ = nullptr;  // the first that failed by itself
  const Child* cause_ = nullptr;        // the child that report() reports
  Clock::time_point end_at_ = kNever;   // when to stop waiting for another cause
  Clock::time_point kill_at_ = kNever;
};

}  // namespace

bool tell_supervisor(const std::string& text) {
  const auto number = environment_variable(kErrorFileVariable);
  if (!number) return false;
  const int file = std::atoi(number->c_str());
  return ::ftruncate(file, 0) == 0 && ::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

int run_child_processes(const ChildProcessOptions& options) {
  Supervisor supervisor(options);  // blocks signals, also for the threads of the store
  c10d::TCPStoreOptions store_options;
  ListeningSocket listening(0, ListeningSocket::Reach::kThisMachine);
  const std::uint16_t port = listening.port();
  store_options.port = port;
  store_options.isServer = true;
  store_options.waitWorkers = false;
  store_options.masterListenFd = listening.release();
  const c10d::TCPStore store("127.0.0.1", store_options);
  supervisor.start(port);
  return supervisor.wait();
}

}  // namespace d9d
