// Runs all ranks of a job on this machine as supervised child processes of this process.
//
// Example
//   if (!rank_environment()) return run_child_processes({.num_ranks = 8});   // executes this program again, 8 times
//   const auto here = *rank_environment();                                   // in each child: as under torchrun
//
// A child gets this program's arguments, torchrun's variables, and an empty standard input; it writes to the standard
// output and error of this process. No child outlives this process, however this process ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace d9d {

// Exit code of a child that was only affected by another rank's failure (PeerFailedError). The supervisor then looks
// for the cause in other children, and returns 1 if none is the cause.
inline constexpr int kPeerFailedExitCode = 75;

struct ChildProcessOptions {
  std::int64_t num_ranks = 1;
  std::chrono::milliseconds patience = std::chrono::seconds(2);  // time from a child's SIGTERM to its SIGKILL
};

// Returns when all children have ended: 0 if all ended with 0; 130 or 143 if some ended with this code, by which
// launch() says that SIGINT or SIGTERM has stopped the program early, and the others with 0. When a child fails, writes
// one line to stderr with its rank and its error message, or how it ended if it left no message. Then ends the other
// children (SIGTERM, then SIGKILL; stopped ones with SIGKILL immediately) and returns the failed child's exit code, or
// 128 + its signal. Passes SIGINT and SIGTERM on to all children; if a child then ends in another way, returns 128 +
// that signal, and writes a line only if a child left an error message.
//
// Call it on the main thread, before other threads are started and outside of an InterruptScope: it takes over SIGINT,
// SIGTERM and SIGCHLD while it runs, and children die with the thread that started them. Throws IoError if a child
// cannot be started.
[[nodiscard]] int run_child_processes(const ChildProcessOptions& options);

// Called in a child: leaves an error message of one line with the supervisor, which writes it to stderr if this rank is
// the cause of the job's end. Returns false in other processes.
[[nodiscard]] bool tell_supervisor(const std::string& text);

}  // namespace d9d
