// A logger for lines that are prefixed with the rank. A value that is passed explicitly; copies share the sink.
//
// Example
//   const d9d::Logger log({.qualifier = "pp:0-dpr:1"});
//   log.info("resumed from step ", step);  // [d9d] [pp:0-dpr:1] 12:34:56 - INFO - resumed from step 40
//
// While a progress bar is on the terminal, lines must be printed above it: log.with_sink(bar.sink()).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "d9d/base/check.h"
#include "d9d/base/enum_names.h"

namespace d9d {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
constexpr auto enum_names(LogLevel) {
  return std::to_array<EnumName<LogLevel>>({{LogLevel::kDebug, "debug"},
                                            {LogLevel::kInfo, "info"},
                                            {LogLevel::kWarning, "warning"},
                                            {LogLevel::kError, "error"}});
}

// Takes one whole line, without its line end. May be called from any thread.
using LogSink = std::function<void(std::string_view line)>;

// Writes the line and its end with one system call, so that lines of several processes do not mix.
void write_line_to_stderr(std::string_view line);

struct LoggerOptions {
  std::string qualifier = "local";       // the rank that writes; part of every line
  LogLevel min_level = LogLevel::kInfo;  // lines of lower levels are dropped
  LogSink sink = write_line_to_stderr;
};

class Logger {
 public:
  explicit Logger(LoggerOptions options = {});

  // The same logger with another sink.
  [[nodiscard]] Logger with_sink(LogSink sink) const;

  // These functions concatenate streamable parts to one line. The time of day is local time.
  template <class... Parts>
  void debug(const Parts&... parts) const {
    write(LogLevel::kDebug, parts...);
  }
  template <class... Parts>
  void info(const Parts&... parts) const {
    write(LogLevel::kInfo, parts...);
  }
  template <class... Parts>
  void warning(const Parts&... parts) const {
    write(LogLevel::kWarning, parts...);
  }
  template <class... Parts>
  void error(const Parts&... parts) const {
    write(LogLevel::kError, parts...);
  }

 private:
  template <class... Parts>
  void write(LogLevel level, const Parts&... parts) const {
    if (level >= options_.min_level) write_line(level, cat(parts...));
  }
  void write_line(LogLevel level, std::string_view message) const;

  LoggerOptions options_;
};

}  // namespace d9d
