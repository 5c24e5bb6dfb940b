// trainer.pipelining.schedule = {"schedule": "auto"}: measures stages before the job builds its own, and chooses the
// schedule with the shortest simulated step that fits into memory.
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

// Chooses among the schedules that `config` allows. Throws ConfigError if none fits into memory, naming the one that
// needs the least.
[[nodiscard]] ScheduleChoice choose_schedule(const AutoScheduleConfig& config, std::int64_t num_ranks,
                                             const MeasuredPipeline& measured);

// Collective over the job. Returns the configuration with a schedule by name, the same on all ranks; a schedule that is
// named already stays. With one pipeline rank the model is one stage, and nothing is measured. A job that continues
// keeps the schedule that was chosen before, if it has the same number of pipeline ranks and the same keys, and if that
// schedule can run its microbatches. The main process logs the costs, the candidates and the choice, and writes
// AutoScheduleConfig::costs_file.
[[nodiscard]] TrainerConfig with_chosen_schedule(const UnbuiltJob& job, const std::optional<SavedCheckpoint>& saved);

// Returns trainer.pipelining.schedule as checkpoints contain it if it is auto, otherwise null.
[[nodiscard]] nlohmann::ordered_json auto_schedule_of(const TrainerConfig& config);

}  // namespace d9d
