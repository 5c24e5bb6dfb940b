#include "d9d/base/interrupt.h"

#include <dlfcn.h>
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
// lint: allow(at-once): the notice changes only together with interrupt_test, which compares it
constexpr std::string_view kNotice = "stopping after this step; press Ctrl-C again to stop at once\n";
constexpr std::string_view kEraseRow = "\r\x1b[K";  // the "^C" that a terminal echoes, and the row of a progress bar

// lint: allow(mutable-global): a signal handler can reach nothing but globals; handlers belong to the process.
std::mutex handlers_mutex;
bool are_installed = false;
std::atomic<int> num_scopes = 0;
std::atomic<int> stop_signal = 0;  // the first signal since the first living scope; 0: none
std::atomic<bool> stderr_is_terminal = false;
std::array<struct sigaction, kSignals.size()> previous_actions;
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "signal handlers may use lock-free atomics only");

void write_to_stderr(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

void end_process(int signal_number) {
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);  // blocked while we are in here: ends the process on return
}

void act_as_before(int signal_number, siginfo_t* info, void* context) {
  const struct sigaction& previous = previous_actions[signal_number == kSignals[0] ? 0 : 1];
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal_number, info, context);
  } else if (previous.sa_handler == SIG_DFL) {
    end_process(signal_number);
  } else if (previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal_number);
  }
}

void on_signal(int signal_number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  if (num_scopes == 0) {
    act_as_before(signal_number, info, context);
  } else if (stop_signal.exchange(signal_number) != 0) {
    end_process(signal_number);
  } else {
    if (stderr_is_terminal) write_to_stderr(kEraseRow);
    write_to_stderr(kNotice);
  }
  errno = saved_errno;
}

// NVRTC's handlers are installed only while it compiles.
bool is_of_nvrtc(const struct sigaction& action) {
  Dl_info place{};
  const void* const handler = (action.sa_flags & SA_SIGINFO) != 0 ? reinterpret_cast<const void*>(action.sa_sigaction)
                                                                  : reinterpret_cast<const void*>(action.sa_handler);
  return ::dladdr(handler, &place) != 0 && place.dli_fname != nullptr &&
         std::string_view(place.dli_fname).find("nvrtc") != std::string_view::npos;
}

// Handlers that others installed meanwhile are the ones that signals call again when no scope lives.
void install() {
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;  // SA_RESTART: reads of data files continue
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction found {};
    ::sigaction(kSignals[i], &action, &found);
    const bool is_ours = (found.sa_flags & SA_SIGINFO) != 0 && found.sa_sigaction == on_signal;
    if (!is_ours && !is_of_nvrtc(found)) previous_actions[i] = found;
  }
  are_installed = true;
}

}  // namespace

void install_interrupt_handlers() {
  const std::lock_guard lock(handlers_mutex);
  if (!are_installed) install();
}

InterruptScope::InterruptScope() {
  const std::lock_guard lock(handlers_mutex);
  install();
  if (num_scopes == 0) {
    stop_signal = 0;
    stderr_is_terminal = ::isatty(STDERR_FILENO) == 1;
  }
  ++num_scopes;
}

InterruptScope::~InterruptScope() { --num_scopes; }

bool InterruptScope::requested() const { return stop_signal != 0; }

int InterruptScope::signal() const { return stop_signal; }

bool interrupt_requested() { return num_scopes > 0 && stop_signal != 0; }

}  // namespace d9d
