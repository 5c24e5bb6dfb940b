#include "d9d/loop/run/step_profiler.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "d9d/base/check.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/base/io/posix.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/memory_history.h"
#include "d9d/core/error/error_place.h"
#include "d9d/modules/module_ranges.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ExperimentalConfig;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// Collective. Returns whether this rank is to record, and is the first of those that are threads of its process.
bool records(const DistContext& context, const ProfilingConfig& config) {
  char host[256] = {};
  (void)gethostname(host, sizeof host - 1);
  const bool is_asked = !config.ranks || std::ranges::count(*config.ranks, context.rank()) > 0;
  const nlohmann::json nobody;
  const auto all =
      all_gather_object(is_asked ? nlohmann::json{host, getpid()} : nobody, context.mesh(MeshDomain::kBatch));
  const auto own = static_cast<std::size_t>(context.mesh(MeshDomain::kBatch).index());
  return is_asked && std::ranges::find(all, all[own]) - all.begin() == static_cast<std::ptrdiff_t>(own);
}

ProfilerConfig kineto(const ProfilingConfig& config) {
  ExperimentalConfig experimental;
  experimental.profile_all_threads = true;  // ranks may be threads, and backward runs on others
  return ProfilerConfig(ProfilerState::KINETO, config.record_shapes, /*profile_memory=*/false, /*with_stack=*/false,
                        /*with_flops=*/false, /*with_modules=*/false, experimental);
}

std::set<ActivityType> activities_on(c10::Device device) {
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  return activities;
}

// Coordinates on the axes that have several ranks: "pp0-dps1", or "rank0" in a job of one rank.
std::string name_of(const DistContext& context) {
  std::string name;
  const DeviceMesh& mesh = context.mesh(MeshDomain::kRegular);
  for (const auto& axis : mesh.axes()) {
    if (axis.size > 1) name += cat(name.empty() ? "" : "-", axis.name, mesh.axis_coordinate(axis.name));
  }
  return name.empty() ? "rank0" : name;
}

void write(torch::autograd::profiler::ProfilerResult& result, const fs::path& file) {
  const fs::path unfinished = file.string() + ".tmp";
  result.save(unfinished);
  std::error_code error;
  if (fs::exists(unfinished)) {
    fs::rename(unfinished, file, error);
  } else {
    error = std::make_error_code(std::errc::io_error);
  }
  D9D_CHECK(!error, IoError, "[loop::profiling] expected to write ", file.string(), ", got: ", error.message(),
            ". Check profiling.traces_dir, and the space on its disk.");
}

}  // namespace

void check_profiling(const std::optional<ProfilingConfig>& config, const DistContext& context) {
  if (!config || !config->memory_snapshots) return;
  D9D_CHECK(context.device().is_cuda() && is_built_with_cuda(), ConfigError,
            "[loop::profiling] expected a CUDA device, and a build with CUDA, for profiling.memory_snapshots, got ",
            context.device().str(), is_built_with_cuda() ? "" : ", and a build without", ". Set it to false.");
}

StepProfiler::StepProfiler(const std::optional<ProfilingConfig>& config, const DistContext& context)
    : config_(config), context_(context), is_recorder_(config && records(context, *config)) {
  if (!is_recorder_) return;
  with_error_place("profiling.traces_dir", [&] { detail::make_writable_folder(config_->traces_dir); });
}

StepProfiler::~StepProfiler() {
  try {
    (void)end_recording();
  } catch (const std::exception&) {  // an exception ended the run; it is the one to report
  }
  if (written_.valid()) written_.wait();
}

// Returns what was recorded; null if nothing was. A profiler that was only prepared must be started to be ended.
StepProfiler::Recording StepProfiler::end_recording() {
  const Phase phase = std::exchange(phase_, Phase::kIdle);
  if (phase == Phase::kIdle) return {};
  if (phase == Phase::kWarmUp) {
    torch::autograd::profiler::enableProfiler(kineto(*config_), activities_on(context_.device()));
  }
  set_module_ranges(false);
  Recording recording{.trace = torch::autograd::profiler::disableProfiler(), .memory = {}};
  if (phase != Phase::kRecording) return {};
  if (config_->memory_snapshots) end_memory_history(recording.memory);
  return recording;
}

StepProfiler::Phase StepProfiler::phase_of(std::int64_t index) const {
  const std::int64_t in_period = index % config_->period_steps;
  if (in_period >= config_->period_steps - config_->active_steps) return Phase::kRecording;
  const std::int64_t num_last = config_->warmup_steps + config_->active_steps;
  return in_period >= config_->period_steps - num_last ? Phase::kWarmUp : Phase::kIdle;
}

bool StepProfiler::ends_recording(std::int64_t index) const {
  return config_ && index % config_->period_steps == config_->period_steps - 1;
}

// The profiler is prepared at the first step of the warm-up, so that recorded steps do not contain its start.
void StepProfiler::begin_step(std::int64_t index) {
  if (!is_recorder_) return;
  const Phase phase = phase_of(index);
  if (phase == phase_) return;
  const auto activities = activities_on(context_.device());
  if (phase_ == Phase::kIdle) torch::autograd::profiler::prepareProfiler(kineto(*config_), activities);
  if (phase == Phase::kRecording) {
    torch::autograd::profiler::enableProfiler(
        kineto(*config_), activities,
        {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION});
    set_module_ranges(config_->with_stack);
    if (config_->memory_snapshots) begin_memory_history();
    first_step_ = index;
  }
  phase_ = phase;
}

void StepProfiler::end_step(std::int64_t index) {
  last_step_ = index;
  if (ends_recording(index)) write_recorded();
}

void StepProfiler::write_recorded() {
  const Recording recording = end_recording();
  wait_for_file();
  if (recording.trace == nullptr) return;
  const fs::path folder = config_->traces_dir / cat("steps-", first_step_, "-", last_step_);
  has_recorded_ = true;
  if (context_.is_main_process()) {
    context_.log().info("trace of steps ", first_step_, " to ", last_step_, ": ", (folder / name_of(context_)).string(),
                        ".json");
  }
  written_ = std::async(std::launch::async, [recording, folder, name = name_of(context_)] {
    fs::create_directories(folder);
    write(*recording.trace, folder / (name + ".json"));
    if (!recording.memory.empty()) write_file_atomically(folder / (name + ".memory.pickle"), recording.memory);
  });
}

void StepProfiler::finish() {
  write_recorded();
  wait_for_file();
  if (config_ && !has_recorded_ && context_.is_main_process()) {
    context_.log().warning("no trace was recorded: the first is of steps ",
                           config_->period_steps - config_->active_steps, " to ", config_->period_steps - 1,
                           ". Lower profiling.period_steps");
  }
}

void StepProfiler::wait_for_file() {
  if (written_.valid()) written_.get();
}

}  // namespace d9d
