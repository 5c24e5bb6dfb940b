// Ctrl-C and SIGTERM end a run at a step boundary; a second one ends the process immediately.
//
// Example
//   const d9d::InterruptScope interrupt;           // installs the handlers
//   while (step < total && !interrupt.requested()) train_one_step();
//   save_checkpoint();
//
// The first signal sets a flag and prints one line to standard error. The second gets the system's default action, so
// that a shell sees a process killed by the signal (exit code 130 after Ctrl-C). Signal handlers belong to the whole
// process: scopes that live at the same time, such as those of ranks that are threads, share the flag.
//
// NVRTC, which cuDNN and PyTorch call to compile kernels, installs its own handlers and afterwards restores the
// previous ones: handlers that another thread installs meanwhile are lost. So this library installs its handlers before
// the first thread that may compile, and keeps them.
#pragma once

namespace d9d {

// Handles SIGINT and SIGTERM from now on; while no scope lives, the signals have their previous effect. May be called
// from any thread; calls after the first do nothing.
void install_interrupt_handlers();

// Whether a scope lives and a signal has arrived since the first living scope was created; for work without a scope of
// its own, such as a wait for data. May be called from any thread.
[[nodiscard]] bool interrupt_requested();

class InterruptScope {
 public:
  // Installs the handlers; from the first scope on a signal is a request.
  InterruptScope();
  // After the last scope, signals have the effect again that they had before the handlers were installed.
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // Whether a signal has arrived since the first living scope was created. May be called from any thread; costs one
  // load.
  [[nodiscard]] bool requested() const;
  // The number of that signal; 0 if none has arrived.
  [[nodiscard]] int signal() const;
};

}  // namespace d9d
