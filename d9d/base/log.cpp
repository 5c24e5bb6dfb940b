#include "d9d/base/log.h"

#include <unistd.h>

#include <array>
#include <ctime>
#include <string>
#include <utility>

namespace d9d {
namespace {

std::string_view name_of(LogLevel level) {
  constexpr std::array<std::string_view, 4> kNames = {"DEBUG", "INFO", "WARNING", "ERROR"};
  return kNames[static_cast<std::size_t>(level)];
}

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 16> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%H:%M:%S", &local)};
}

}  // namespace

void write_line_to_stderr(std::string_view line) {
  const std::string text = std::string(line) + '\n';
  // The result is ignored: if standard error fails, there is no other place to report it.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

Logger::Logger(LoggerOptions options) : options_(std::move(options)) {}

Logger Logger::with_sink(LogSink sink) const {
  LoggerOptions options = options_;
  options.sink = std::move(sink);
  return Logger(std::move(options));
}

void Logger::write_line(LogLevel level, std::string_view message) const {
  options_.sink(cat("[d9d] [", options_.qualifier, "] ", time_of_day(), " - ", name_of(level), " - ", message));
}

}  // namespace d9d
