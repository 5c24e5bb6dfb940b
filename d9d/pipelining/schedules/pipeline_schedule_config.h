// The pipeline schedule of a job: one of the records below, selected in JSON by "schedule".
//
// Example
//   {"schedule": "1f1b", "num_stages_per_rank": 2, "zero_bubble": true}
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <variant>
#include <vector>

#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"

namespace d9d {

// All forwards, then all backwards (Huang et al. 2019).
struct GPipeScheduleConfig {
  static constexpr Tag kTag = {"schedule", "gpipe"};
  static constexpr auto fields() { return record<GPipeScheduleConfig>(); }
};

// Forwards only.
struct InferenceScheduleConfig {
  static constexpr Tag kTag = {"schedule", "inference"};
  static constexpr auto fields() { return record<InferenceScheduleConfig>(); }
};

// GPipe over several stages a rank, breadth first (Lamy-Poirier 2023).
struct LoopedBfsScheduleConfig {
  std::int64_t num_stages_per_rank = 1;  // parts of the model that each rank holds

  static constexpr Tag kTag = {"schedule", "looped_bfs"};
  static constexpr auto fields() {
    using Schedule = LoopedBfsScheduleConfig;
    return record<Schedule>(required("num_stages_per_rank", &Schedule::num_stages_per_rank, at_least(1)));
  }
};

// How many forwards a rank runs ahead of its first backward, for each rank that comes after it in the pipeline.
enum class OneFOneBDepth {
  kDouble,   // two: messages that take as long as a forward delay nothing; up to 2 P - 1 live microbatches
  kClassic,  // one: at most P live microbatches (Narayanan et al. 2019)
};
constexpr auto enum_names(OneFOneBDepth) {
  return std::to_array<EnumName<OneFOneBDepth>>(
      {{OneFOneBDepth::kDouble, "double"}, {OneFOneBDepth::kClassic, "classic"}});
}

// One forward, one backward; interleaved with several stages a rank (Narayanan et al. 2021).
struct OneFOneBScheduleConfig {
  std::int64_t num_stages_per_rank = 1;  // parts of the model that each rank holds
  bool zero_bubble = false;  // split backward, weight gradients fill the bubbles (Qi et al. 2023); depth is classic
  // How far forwards run ahead: double delays less, classic keeps fewer microbatches.
  OneFOneBDepth depth = OneFOneBDepth::kDouble;

  static constexpr Tag kTag = {"schedule", "1f1b"};
  static constexpr auto fields() {
    using Schedule = OneFOneBScheduleConfig;
    return record<Schedule>(defaulted("num_stages_per_rank", &Schedule::num_stages_per_rank, at_least(1)),
                            defaulted("zero_bubble", &Schedule::zero_bubble), defaulted("depth", &Schedule::depth));
  }
};

// Two stages a rank, laid out as a V (Qi et al. 2024).
struct ZeroBubbleVScheduleConfig {
  static constexpr Tag kTag = {"schedule", "zero_bubble_v"};
  static constexpr auto fields() { return record<ZeroBubbleVScheduleConfig>(); }
};

// DualPipe in V form (DeepSeek-AI 2024).
struct DualPipeVScheduleConfig {
  static constexpr Tag kTag = {"schedule", "dual_pipe_v"};
  static constexpr auto fields() { return record<DualPipeVScheduleConfig>(); }
};

enum class ScheduleKind { kGPipe, kLoopedBfs, kOneFOneB, kZeroBubbleV, kDualPipeV };
constexpr auto enum_names(ScheduleKind) {
  return std::to_array<EnumName<ScheduleKind>>({{ScheduleKind::kGPipe, GPipeScheduleConfig::kTag.value},
                                                {ScheduleKind::kLoopedBfs, LoopedBfsScheduleConfig::kTag.value},
                                                {ScheduleKind::kOneFOneB, OneFOneBScheduleConfig::kTag.value},
                                                {ScheduleKind::kZeroBubbleV, ZeroBubbleVScheduleConfig::kTag.value},
                                                {ScheduleKind::kDualPipeV, DualPipeVScheduleConfig::kTag.value}});
}

// The job measures its stages and chooses, among the other schedules, the one with the shortest simulated step that
// keeps at most max_bytes.
struct AutoScheduleConfig {
  std::int64_t max_stages_per_rank = 4;      // of the schedules that it compares
  std::vector<ScheduleKind> schedules = {};  // those to choose from; empty: all
  // Bytes that a rank may keep for its stages (parameters, gradients, two fp32 moments, what FSDP gathers) and
  // microbatches. null: on GPUs nine tenths of the memory that is free without stages, on CPUs no limit.
  std::optional<std::int64_t> max_bytes = {};
  std::optional<std::filesystem::path> costs_file = {};  // file to write, for d9d_pipeline_plot --costs; null: none

  static constexpr Tag kTag = {"schedule", "auto"};
  static constexpr auto fields() {
    using Auto = AutoScheduleConfig;
    return record<Auto>(defaulted("max_stages_per_rank", &Auto::max_stages_per_rank, at_least(1)),
                        defaulted("schedules", &Auto::schedules), defaulted("max_bytes", &Auto::max_bytes, at_least(0)),
                        defaulted("costs_file", &Auto::costs_file));
  }
};

using PipelineScheduleConfig =
    std::variant<GPipeScheduleConfig, InferenceScheduleConfig, LoopedBfsScheduleConfig, OneFOneBScheduleConfig,
                 ZeroBubbleVScheduleConfig, DualPipeVScheduleConfig, AutoScheduleConfig>;

}  // namespace d9d
