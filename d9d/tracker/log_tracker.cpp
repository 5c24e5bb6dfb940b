#include "d9d/tracker/log_tracker.h"

#include <array>
#include <cstdio>
#include <string_view>
#include <utility>

#include "d9d/tracker/run_info.h"

namespace d9d {
namespace {

std::string context_text(const TrackerContext& context) {
  std::string text;
  for (const auto& [key, value] : context) text += (text.empty() ? " (" : ", ") + key + '=' + value;
  return text.empty() ? text : text + ')';
}

std::string six_digits(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

class LogRun final : public TrackerRun {
 public:
  LogRun(Logger logger, std::string name) : logger_(std::move(logger)), name_(std::move(name)) {}
  ~LogRun() override { close_in_destructor(); }

 private:
  void do_write(const TrackerPoint& point, const TrackerValue& value) override {
    if (const double* scalar = std::get_if<double>(&value)) {
      logger_.info("step ", point.step, context_text(point.context), ": ", point.name, '=', six_digits(*scalar));
    }
  }
  void do_close(RunOutcome outcome) override {
    constexpr std::array<const char*, 3> kTexts = {"completed", "failed", "stopped"};
    logger_.info("run '", name_, "' ", kTexts.at(static_cast<std::size_t>(outcome)));
  }

  Logger logger_;
  std::string name_;
};

}  // namespace

std::unique_ptr<TrackerRun> LogTracker::open(const RunInfo& info) const {
  return std::make_unique<LogRun>(info.log, info.name);
}

}  // namespace d9d
