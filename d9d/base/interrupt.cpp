#include "d9d/base/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <string_view>

namespace d9d {
namespace {

constexpr std::array<int, 2> kSignals = {SIGINT, SIGTERM};
constexpr std::string_view kNotice = "stopping after this step; press Ctrl-C again to stop at once\n";
constexpr std::string_view kEraseRow = "\r\x1b[K";  // the "^C" that a terminal echoes, and the row of a progress bar

// lint: allow(mutable-global): a signal handler can reach nothing but globals; these belong to the living scopes.
std::mutex scopes_mutex;
int num_scopes = 0;
std::atomic<bool> stop_requested = false;
std::atomic<bool> stderr_is_terminal = false;
std::array<struct sigaction, kSignals.size()> previous_actions;
static_assert(std::atomic<bool>::is_always_lock_free, "signal handlers may use lock-free atomics only");

void write_to_stderr(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

void on_signal(int signal_number) {
  const int saved_errno = errno;
  if (stop_requested.exchange(true)) {
    ::signal(signal_number, SIG_DFL);
    ::raise(signal_number);  // blocked while we are in here: ends the process on return
  } else {
    if (stderr_is_terminal) write_to_stderr(kEraseRow);
    write_to_stderr(kNotice);
  }
  errno = saved_errno;
}

}  // namespace

InterruptScope::InterruptScope() {
  const std::lock_guard lock(scopes_mutex);
  if (num_scopes++ > 0) return;
  stop_requested = false;
  stderr_is_terminal = ::isatty(STDERR_FILENO) == 1;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // reads of data files go on
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &previous_actions[i]);
}

InterruptScope::~InterruptScope() {
  const std::lock_guard lock(scopes_mutex);
  if (--num_scopes > 0) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &previous_actions[i], nullptr);
}

bool InterruptScope::requested() const { return stop_requested; }

}  // namespace d9d
