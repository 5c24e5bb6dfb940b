// All ranks of a job on this machine, as supervised child processes of this one.
//
// Example
//   if (!rank_environment()) return run_child_processes({.num_ranks = 8});   // executes this program again, 8 times
//   const auto here = *rank_environment();                                   // in each of the 8: as under torchrun
//
// A child gets this program's arguments, torchrun's variables, and an empty standard input; its output goes where this
// process's goes. No child outlives this process, whatever ends it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace d9d {

// How a child ends that found nothing wrong with itself (PeerFailedError): the supervisor looks for the cause
// elsewhere.
inline constexpr int kPeerFailedExitCode = 75;

struct ChildProcessOptions {
  std::int64_t num_ranks = 1;
  std::chrono::milliseconds patience = std::chrono::seconds(2);  // of a child that is told to end, until it is killed
};

// Runs until all children have ended. 0 when all ended with 0. When one fails, writes one line to stderr with its rank
// and what it told, else how it ended; ends the others (SIGTERM, then SIGKILL), and returns its exit code, or 128 + its
// signal. SIGINT and SIGTERM go on to all children; if these then end otherwise than with 0, returns 128 + that signal,
// without a line.
//
// Call it on the main thread, before other threads are started and outside of an InterruptScope: it takes over SIGINT,
// SIGTERM and SIGCHLD while it runs, and children die with the thread that started them. Throws IoError when a child
// cannot be started.
[[nodiscard]] int run_child_processes(const ChildProcessOptions& options);

// In a child: leaves the text, one line, to the supervisor, who writes it to stderr should this rank be the cause.
// False in other processes.
[[nodiscard]] bool tell_supervisor(const std::string& text);

}  // namespace d9d
