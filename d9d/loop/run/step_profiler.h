// Records traces of some steps of a run with LibTorch's profiler (Kineto), as trainer.profiling says: a file for each
// process, which chrome://tracing, ui.perfetto.dev and TensorBoard open. Ranges are named: steps, their phases, the
// actions of a pipeline, gathers of sharded units, and modules. With memory_snapshots there is also a file for
// https://pytorch.org/memory_viz, whose stacks have the names of functions.
//
// Example
//   StepProfiler profiler(config.profiling, context);
//   while (...) {
//     profiler.begin_step(index);
//     ...
//     profiler.end_step(index);
//   }
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/config/trainer_config.h"

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace d9d {

// Local. Throws ConfigError if the configuration asks for what the device of the job or this build does not have.
void check_profiling(const std::optional<ProfilingConfig>& config, const DistContext& context);

class StepProfiler {
 public:
  // context: borrowed. Where ranks are threads of one process, the first of them traces all.
  StepProfiler(const std::optional<ProfilingConfig>& config, const DistContext& context);
  // Waits until the traces are written, and drops one whose steps an exception ended.
  ~StepProfiler();
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  // Local. Called before and after each step. index: of the step, counted from 0. end_step() ends a recording after its
  // last step: a thread writes the file. It throws IoError if the file before that could not be written.
  void begin_step(std::int64_t index);
  void end_step(std::int64_t index);
  // Whether end_step() of this step ends a recording, which may take longer than a step. The same on all ranks.
  [[nodiscard]] bool ends_recording(std::int64_t index) const;
  // Ends a recording early where the run ends, and waits until all files are written. Throws IoError.
  void finish();

 private:
  enum class Phase : std::uint8_t { kIdle, kWarmUp, kRecording };
  [[nodiscard]] Phase phase_of(std::int64_t index) const;
  struct Recording {
    std::shared_ptr<torch::autograd::profiler::ProfilerResult> trace;  // null: nothing was recorded
    std::string memory;                                                // empty without memory_snapshots
  };
  [[nodiscard]] Recording end_recording();
  void write_recorded();
  void wait_for_file();

  const std::optional<ProfilingConfig> config_;
  const DistContext& context_;
  const bool is_recorder_;  // whether this rank records
  bool has_recorded_ = false;
  Phase phase_ = Phase::kIdle;
  std::int64_t first_step_ = 0, last_step_ = 0;  // of the recording
  std::future<void> written_;
};

}  // namespace d9d
