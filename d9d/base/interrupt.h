// Ctrl-C and SIGTERM end a run at a step boundary; a second one ends the process at once.
//
// Example
//   const d9d::InterruptScope interrupt;           // installs the handlers
//   while (step < total && !interrupt.requested()) train_one_step();
//   save_checkpoint();
//
// The first signal sets a flag and prints one line to standard error. The second gets the system's default action, so
// that a shell sees a process killed by the signal (exit code 130 after Ctrl-C). Signal handlers belong to the whole
// process: scopes that live at the same time, such as those of ranks that are threads, share the flag.
#pragma once

namespace d9d {

class InterruptScope {
 public:
  // Takes over SIGINT and SIGTERM, unless another scope has.
  InterruptScope();
  // The last scope gives the signals back to whoever handled them before.
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // Whether a signal has arrived since the first of the living scopes was made. Any thread; costs one load.
  [[nodiscard]] bool requested() const;
};

}  // namespace d9d
