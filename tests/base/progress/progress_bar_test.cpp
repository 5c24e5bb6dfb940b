#include "d9d/base/progress/progress_bar.h"

#include <fcntl.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::progress_bar_test {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class FakeClock {
 public:
  void advance(milliseconds time) { now_ += time; }
  auto reader() {
    return [this] { return now_; };
  }

 private:
  std::chrono::steady_clock::time_point now_;
};

// Reads everything that is available from a non-blocking descriptor.
std::string read_available(int file) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = ::read(file, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

void make_non_blocking(int file) { ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) | O_NONBLOCK); }

// A pseudo-terminal and the screen that its output would produce.
class PseudoTerminal {
 public:
  explicit PseudoTerminal(unsigned short columns) {
    winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::openpty(&master_, &slave_, nullptr, nullptr, &size), 0);
    make_non_blocking(master_);
  }
  ~PseudoTerminal() {
    ::close(master_);
    ::close(slave_);
  }
  [[nodiscard]] int file() const { return slave_; }

  std::string raw() {
    ::tcdrain(slave_);
    return read_available(master_);
  }

  std::vector<std::string> screen() {
    const std::string text = raw();
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\r') {
        column_ = 0;
      } else if (text[i] == '\n') {
        rows_.emplace_back();
      } else if (text.compare(i, 3, "\x1b[K") == 0) {
        rows_.back().resize(std::min(rows_.back().size(), column_));
        i += 2;
      } else {
        rows_.back().resize(std::max(rows_.back().size(), column_ + 1), ' ');
        rows_.back()[column_++] = text[i];
      }
    }
    return rows_;
  }

 private:
  int master_ = -1;
  int slave_ = -1;
  std::vector<std::string> rows_ = {""};
  std::size_t column_ = 0;
};

TEST(ProgressBarOnATerminal, Redraws_one_row_in_place) {
  PseudoTerminal terminal(60);
  FakeClock clock;
  ProgressBar bar({.label = "train", .total = 300, .file = terminal.file(), .now = clock.reader()});
  for (int step = 1; step <= 45; ++step) {
    clock.advance(milliseconds(200));
    bar.update(step, {"loss 2.3456"});
  }
  EXPECT_THAT(terminal.screen(), ElementsAre("train  45/300 [==>            ]  15%  loss 2.3456  eta 0:51"));
}

TEST(ProgressBarOnATerminal, Redraws_at_most_ten_times_a_second_but_always_the_last_step) {
  PseudoTerminal terminal(80);
  FakeClock clock;
  ProgressBar bar({.label = "train", .total = 1000, .file = terminal.file(), .now = clock.reader()});
  std::string text;
  for (int step = 1; step <= 1000; ++step) {
    clock.advance(milliseconds(1));
    bar.update(step);
    text += terminal.raw();
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 11);  // steps 1, 101, ..., 901, 1000
  EXPECT_THAT(text, HasSubstr("1000/1000"));
}

TEST(ProgressBarOnATerminal, Keeps_to_the_width_of_the_terminal) {
  PseudoTerminal terminal(30);
  ProgressBar bar({.label = "train", .total = 300, .file = terminal.file()});
  bar.update(45, {"loss 2.3456", "grad 1.23"});
  const auto screen = terminal.screen();
  ASSERT_EQ(screen.size(), 1U);
  EXPECT_LT(screen[0].size(), 30U);
}

TEST(ProgressBarOnATerminal, Leaves_no_rest_of_a_longer_row) {
  PseudoTerminal terminal(80);
  FakeClock clock;
  ProgressBar bar({.label = "train", .total = 10, .file = terminal.file(), .now = clock.reader()});
  bar.update(0, {"a long field"});
  clock.advance(milliseconds(100));
  bar.update(0, {});
  EXPECT_THAT(terminal.screen(), ElementsAre(EndsWith("%")));
}

TEST(ProgressBarOnATerminal, Puts_other_lines_above_the_row) {
  PseudoTerminal terminal(50);
  ProgressBar bar({.label = "train", .total = 10, .file = terminal.file()});
  const Logger log({.sink = bar.sink()});
  bar.print_above("before the first step");
  bar.update(0);
  log.info("saved");
  bar.print_above("short");
  EXPECT_THAT(terminal.screen(), ElementsAre("before the first step", EndsWith(" - INFO - saved"), "short",
                                             "train  0/10 [>                         ]   0%"));
}

TEST(ProgressBarOnATerminal, Leaves_the_final_row_and_goes_below_it) {
  PseudoTerminal terminal(50);
  {
    ProgressBar bar({.label = "load", .total = 2, .file = terminal.file()});
    bar.update(1);
    bar.update(2);
    bar.finish();
    bar.update(1);
  }
  EXPECT_THAT(terminal.screen(), ElementsAre("load 2/2 [==========================] 100%", ""));
}

TEST(ProgressBarOnATerminal, Destroyed_half_way_keeps_the_position) {
  PseudoTerminal terminal(50);
  { ProgressBar({.label = "load", .total = 4, .file = terminal.file()}).update(0); }
  EXPECT_THAT(terminal.screen(), ElementsAre("load 0/4 [>                         ]   0%", ""));
}

TEST(ProgressBarOnATerminal, Takes_the_rate_from_the_steps_of_this_process_after_a_resume) {
  PseudoTerminal terminal(120);
  FakeClock clock;
  ProgressBar bar({.label = "train", .total = 300, .initial = 200, .file = terminal.file(), .now = clock.reader()});
  clock.advance(milliseconds(2000));
  bar.update(201);
  EXPECT_THAT(terminal.screen(), ElementsAre(HasSubstr("train 201/300")));
  clock.advance(milliseconds(2000));
  bar.update(202);
  EXPECT_THAT(terminal.screen(), ElementsAre(EndsWith("eta 3:16")));
}

TEST(ProgressBarOnATerminal, Forgets_a_slow_first_step) {
  PseudoTerminal terminal(120);
  FakeClock clock;
  ProgressBar bar({.label = "train", .total = 100, .file = terminal.file(), .now = clock.reader()});
  clock.advance(milliseconds(60000));
  bar.update(1);
  for (int step = 2; step <= 60; ++step) {
    clock.advance(milliseconds(1000));
    bar.update(step);
  }
  EXPECT_THAT(terminal.screen(), ElementsAre(EndsWith("eta 0:40")));
}

class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(::pipe(ends_.data()), 0);
    make_non_blocking(ends_[0]);
  }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  [[nodiscard]] int file() const { return ends_[1]; }
  std::string text() { return read_available(ends_[0]); }

 private:
  std::array<int, 2> ends_{};
};

TEST(ProgressBarElsewhere, Prints_the_first_the_last_and_every_nth_step) {
  Pipe pipe;
  FakeClock clock;
  ProgressBar bar({.label = "train", .total = 25, .file = pipe.file(), .line_period = 10, .now = clock.reader()});
  for (int step = 1; step <= 25; ++step) {
    clock.advance(milliseconds(2000));
    bar.update(step, {"loss 1"});
  }
  bar.finish();
  EXPECT_EQ(pipe.text(),
            "train  1/25   4%  loss 1  eta 0:48\n"
            "train 10/25  40%  loss 1  eta 0:30\n"
            "train 20/25  80%  loss 1  eta 0:10\n"
            "train 25/25 100%  loss 1\n");
}

TEST(ProgressBarElsewhere, Prints_where_it_was_when_it_ends_half_way) {
  Pipe pipe;
  {
    ProgressBar bar({.label = "train", .total = 25, .file = pipe.file()});
    for (int step = 1; step <= 7; ++step) bar.update(step);
  }
  EXPECT_THAT(pipe.text(), HasSubstr("\ntrain  7/25  28%"));
}

TEST(ProgressBarElsewhere, Writes_no_control_characters) {
  Pipe pipe;
  ProgressBar bar({.label = "train", .total = 3, .file = pipe.file()});
  bar.update(1);
  bar.print_above("a line");
  bar.update(3);
  bar.finish();
  const std::string text = pipe.text();
  EXPECT_THAT(text, HasSubstr("\na line\n"));
  EXPECT_TRUE(std::none_of(text.begin(), text.end(), [](char c) { return c != '\n' && c < ' '; }));
}

TEST(ProgressBarElsewhere, Believes_its_caller_about_the_terminal) {
  PseudoTerminal terminal(80);
  ProgressBar bar({.label = "train", .total = 3, .file = terminal.file(), .is_terminal = false});
  bar.update(1);
  EXPECT_THAT(terminal.raw(), Not(HasSubstr("[")));
}

TEST(ProgressBar, Refuses_a_loop_without_steps) {
  EXPECT_THROW(ProgressBar({.label = "train", .total = 0}), ConfigError);
}

}  // namespace
}  // namespace d9d::progress_bar_test
