#include "d9d/base/progress/progress_bar.h"

#include <sys/ioctl.h>

#include <cerrno>
#include <cmath>
#include <utility>

#include "d9d/base/check.h"

namespace d9d {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr auto kMinRedrawInterval = std::chrono::milliseconds(100);
constexpr double kRateSmoothing = 0.2;  // weight of the newest step
constexpr int kDefaultColumns = 80;
constexpr std::string_view kStartOfRow = "\r";
constexpr std::string_view kEraseToEndOfRow = "\x1b[K";

void write_text(int file, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

ProgressBar::ProgressBar(ProgressBarOptions options)
    : options_(std::move(options)),
      is_terminal_(options_.is_terminal.value_or(::isatty(options_.file) == 1)),
      row_{.label = options_.label, .done = options_.initial, .total = options_.total},
      last_step_(options_.now()) {
  D9D_CHECK(options_.total > 0, ConfigError, "[base::progress] expected total > 0 steps for '", options_.label,
            "', got ", options_.total, ". A loop without steps needs no bar.");
  D9D_CHECK(options_.line_period > 0, ConfigError, "[base::progress] expected line_period > 0, got ",
            options_.line_period, ". Pass the number of steps between two lines.");
}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::update(std::int64_t done, std::vector<std::string> fields) {
  const std::lock_guard lock(mutex_);
  if (is_finished_) return;
  const auto now = options_.now();
  estimate_time_left(done, now);
  row_.done = done;
  row_.fields = std::move(fields);

  const bool is_last = done >= row_.total;
  if (is_terminal_) {
    if (!last_draw_ || is_last || now - *last_draw_ >= kMinRedrawInterval) {
      draw_row();
      last_draw_ = now;
    }
  } else if (!last_printed_ || is_last || done % options_.line_period == 0) {
    print_line();
  }
}

void ProgressBar::estimate_time_left(std::int64_t done, std::chrono::steady_clock::time_point now) {
  if (const std::int64_t num_new_steps = done - row_.done; num_new_steps > 0) {
    const double newest = Seconds(now - last_step_).count() / static_cast<double>(num_new_steps);
    seconds_per_step_ = seconds_per_step_ ? std::lerp(*seconds_per_step_, newest, kRateSmoothing) : newest;
    last_step_ = now;
  }
  row_.seconds_left.reset();
  if (seconds_per_step_ && done < row_.total) {
    row_.seconds_left = *seconds_per_step_ * static_cast<double>(row_.total - done);
  }
}

void ProgressBar::print_above(std::string_view line) {
  const std::lock_guard lock(mutex_);
  const bool has_row = last_draw_ && !is_finished_;
  const std::string text =
      has_row ? cat(kStartOfRow, kEraseToEndOfRow, line, '\n', row_text(row_, columns())) : cat(line, '\n');
  write_text(options_.file, text);
}

LogSink ProgressBar::sink() {
  return [this](std::string_view line) { print_above(line); };
}

void ProgressBar::finish() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_finished_, true)) return;
  if (last_draw_) {
    draw_row();
    write_text(options_.file, "\n");
  } else if (last_printed_ && *last_printed_ != row_.done) {
    print_line();
  }
}

void ProgressBar::draw_row() {
  write_text(options_.file, cat(kStartOfRow, row_text(row_, columns()), kEraseToEndOfRow));
}

void ProgressBar::print_line() {
  write_text(options_.file, line_text(row_) + '\n');
  last_printed_ = row_.done;
}

int ProgressBar::columns() const {
  winsize size{};
  const bool is_known = ::ioctl(options_.file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return (is_known ? size.ws_col : kDefaultColumns) - 1;  // a character in the last column would wrap the row
}

}  // namespace d9d
