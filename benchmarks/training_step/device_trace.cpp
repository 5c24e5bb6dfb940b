#include "benchmarks/training_step/device_trace.h"

#include <set>

#include <torch/csrc/autograd/profiler_kineto.h>

namespace benchmarks {
namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

}  // namespace

void begin_device_trace() {
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CUDA};
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
}

void end_device_trace(const std::filesystem::path& file) {
  std::filesystem::create_directories(file.parent_path());
  torch::autograd::profiler::disableProfiler()->save(file);
}

}  // namespace benchmarks
