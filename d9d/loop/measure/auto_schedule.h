// trainer.pipelining.schedule = {"schedule": "auto"}: the schedule with the shortest simulated step that fits, for
// stages that are measured before the job builds its own.
//
// Example
//   const TrainerConfig config = with_chosen_schedule({context, given, binding, task, provider, schedule}, saved);
//   config.pipelining.schedule;                     // a schedule by name
#pragma once

#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/loop/measure/measured_pipeline.h"
#include "d9d/pipelining/simulator/choose_schedule.h"

namespace d9d {

// The choice among the schedules that `config` allows. ConfigError where none fits, naming the one that keeps least.
[[nodiscard]] ScheduleChoice choose_schedule(const AutoScheduleConfig& config, std::int64_t num_ranks,
                                             const MeasuredPipeline& measured);

// Collective over the job. `config` with a schedule by name, the same on all ranks; a schedule that is named already
// stays. On one rank that is the model in one stage, and nothing is measured. A job that continues goes on with what
// was chosen before, if it runs on as many ranks of a pipeline and with the same keys, and if that schedule can run its
// microbatches. The main process logs the costs, the candidates and the choice, and writes
// AutoScheduleConfig::costs_file.
[[nodiscard]] TrainerConfig with_chosen_schedule(const UnbuiltJob& job, const std::optional<SavedCheckpoint>& saved);

// trainer.pipelining.schedule where it is auto, as checkpoints hold it; otherwise null.
[[nodiscard]] nlohmann::ordered_json auto_schedule_of(const TrainerConfig& config);

}  // namespace d9d
