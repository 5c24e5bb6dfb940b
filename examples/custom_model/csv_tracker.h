// A tracker of this program, chosen by {"provider": "custom", "name": "csv", "options": {"path": "metrics.csv"}}: a
// line "step,series,value" for each number.
#pragma once

#include <filesystem>
#include <memory>

#include "d9d/base/config/record_json.h"
#include "d9d/base/io/append_file.h"
#include "d9d/tracker/build_tracker.h"
#include "d9d/tracker/run_info.h"

struct CsvOptions {
  std::filesystem::path path = {};
  static constexpr auto fields() { return d9d::record<CsvOptions>(d9d::required("path", &CsvOptions::path)); }
};

class CsvRun final : public d9d::TrackerRun {
 public:
  explicit CsvRun(const std::filesystem::path& path) : file_(path) {}
  ~CsvRun() override { close_in_destructor(); }  // closes as failed when an exception ends the run

 private:
  void do_write(const d9d::TrackerPoint& point, const d9d::TrackerValue& value) override {
    if (const double* scalar = std::get_if<double>(&value)) {
      file_.write(d9d::cat(point.step, ',', d9d::series_name(point), ',', *scalar, '\n'));
    }
  }
  d9d::AppendFile file_;
};

class CsvTracker final : public d9d::Tracker {
 public:
  explicit CsvTracker(const CsvOptions& options) : options_(options) {}
  std::unique_ptr<d9d::TrackerRun> open(const d9d::RunInfo&) const override {
    return std::make_unique<CsvRun>(options_.path);
  }

 private:
  CsvOptions options_;
};

// For TrainerParts::trackers.
inline std::unique_ptr<d9d::Tracker> make_csv_tracker(const nlohmann::json& options) {
  const d9d::ConfigPath place{.keys = "trainer.logging.tracker.options"};
  return std::make_unique<CsvTracker>(d9d::parse_record<CsvOptions>(options, place));
}
