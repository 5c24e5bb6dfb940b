#include "d9d/tracker/jsonl_tracker.h"

#include <fstream>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/io/append_file.h"
#include "d9d/base/io/folder_lock.h"
#include "d9d/tracker/run_info.h"
#include "d9d/tracker/value_json.h"

namespace d9d {
namespace {

void check(const std::error_code& error, std::string_view action, const std::filesystem::path& path) {
  D9D_CHECK(!error, IoError, "[tracker::jsonl] expected to ", action, " '", path.string(), "', got: ", error.message(),
            ". Check the path and its permissions.");
}

void keep_as_previous(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::filesystem::rename(path, path.string() + ".previous", error);
  check(error, "rename", path);
}

// Two jobs in one file would mix their lines. null for a path that is not a regular file, such as a pipe, which is not
// locked.
std::unique_ptr<FolderLock> lock_of(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) return nullptr;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  return std::make_unique<FolderLock>(path, path.string() + ".lock");
}

std::optional<std::int64_t> step_of(const std::string& line) {
  const auto object = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) return std::nullopt;
  return object["step"].get<std::int64_t>();
}

// Truncates the file before the first line that is incomplete or belongs to a step after `last_step`.
void drop_lines_after(std::int64_t last_step, const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return;
  std::uintmax_t num_kept_bytes = 0;
  for (std::string line; std::getline(file, line) && !file.eof(); num_kept_bytes += line.size() + 1) {
    const auto step = step_of(line);
    if (!step || *step > last_step) break;
  }
  std::error_code error;
  std::filesystem::resize_file(path, num_kept_bytes, error);
  check(error, "cut", path);
}

class JsonlRun final : public TrackerRun {
 public:
  JsonlRun(std::unique_ptr<FolderLock> lock, const std::filesystem::path& path, TrackerContext context,
           std::int64_t last_step)
      : lock_(std::move(lock)), file_(path), context_(std::move(context)), last_step_(last_step) {}
  ~JsonlRun() override { close_in_destructor(); }

  [[nodiscard]] nlohmann::ordered_json state() const override { return state_of_last_step(last_step_); }

 private:
  void do_write(const TrackerPoint& point, const TrackerValue& value) override {
    if (std::holds_alternative<TrackerPicture>(value)) return;  // the file is of values
    if (!line_.empty() && point.step != last_step_) do_flush();
    line_["step"] = last_step_ = point.step;
    line_[point.context == context_ ? point.name : series_name(point)] = value_json(value);
  }
  void do_flush() override {
    if (!line_.empty()) file_.write(std::exchange(line_, nlohmann::ordered_json::object()).dump() + '\n');
  }
  void do_close(RunOutcome) override {
    do_flush();
    file_.close();
    lock_.reset();
  }

  std::unique_ptr<FolderLock> lock_;  // until the run is closed
  AppendFile file_;
  const TrackerContext context_;
  nlohmann::ordered_json line_ = nlohmann::ordered_json::object();  // of step last_step_; empty: nothing pending
  std::int64_t last_step_;
};

}  // namespace

JsonlTracker::JsonlTracker(std::filesystem::path path) : path_(std::move(path)) {}

std::unique_ptr<TrackerRun> JsonlTracker::open(const RunInfo& info) const {
  const auto last_step = resumed_last_step(info);
  auto lock = lock_of(path_);
  if (last_step) {
    drop_lines_after(*last_step, path_);
  } else {
    keep_as_previous(path_);
  }
  return std::make_unique<JsonlRun>(std::move(lock), path_, info.context, last_step.value_or(kNoStep));
}

}  // namespace d9d
