// Shows the progress of a loop in one row at the bottom of a terminal, or as plain lines if there is no terminal.
//
// Example
//   d9d::ProgressBar bar({.label = "train", .total = 300, .initial = resumed_step});
//   bar.update(45, {"loss 2.3456", "grad 1.23", "lr 3.0e-04", d9d::short_number(12345) + " tok/s"});
//   bar.print_above("saved checkpoints/save-45");
//
// On a terminal the row is redrawn in place, at most ten times a second, as wide as the terminal:
//   train  45/300 [===>                      ]  15%  loss 2.3456  grad 1.23  lr 3.0e-04  12.3k tok/s  eta 0:42
// Elsewhere (a file, a pipe) it occasionally prints a line with the same text except the bar, without control
// characters. The time left is derived from a smoothed rate of this process's steps. Thread-safe; texts are ASCII.
// Errors of writing to the terminal are ignored: a progress bar must not end a run.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/base/log.h"
#include "d9d/base/progress/progress_row.h"

namespace d9d {

struct ProgressBarOptions {
  std::string label = {};
  std::int64_t total = 0;                          // steps of the whole run, > 0
  std::int64_t initial = 0;                        // steps that were done before this process started, after a resume
  int file = STDERR_FILENO;                        // borrowed file descriptor
  std::optional<bool> is_terminal = std::nullopt;  // whether to redraw one row of `file`; unset: asks the system
  std::int64_t line_period = 10;  // without a terminal: prints a line at the first, the last and every n-th step
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

class ProgressBar {
 public:
  // Draws nothing yet. Throws ConfigError unless total and line_period are positive.
  explicit ProgressBar(ProgressBarOptions options);
  // Calls finish().
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Reports that `done` steps of the whole run are complete. `fields` are shown after the bar; those that do not fit
  // are left out, beginning with the last.
  void update(std::int64_t done, std::vector<std::string> fields = {});

  // Prints a line above the row.
  void print_above(std::string_view line);

  // print_above as a sink for a Logger; the sink borrows this bar.
  [[nodiscard]] LogSink sink();

  // Leaves the row on the screen as it is and moves the cursor below it; later updates draw nothing. Idempotent.
  void finish();

 private:
  void estimate_time_left(std::int64_t done, std::chrono::steady_clock::time_point now);
  void draw_row();
  void print_line();
  [[nodiscard]] int columns() const;

  const ProgressBarOptions options_;
  const bool is_terminal_;
  std::mutex mutex_;  // guards all members below
  ProgressRow row_;
  std::chrono::steady_clock::time_point last_step_;
  std::optional<std::chrono::steady_clock::time_point> last_draw_;  // unset: no row on the screen
  std::optional<double> seconds_per_step_;
  std::optional<std::int64_t> last_printed_;  // `done` of the last plain line
  bool is_finished_ = false;
};

}  // namespace d9d
