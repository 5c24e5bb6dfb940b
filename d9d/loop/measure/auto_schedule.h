// Implements trainer.pipelining.schedule = {"schedule": "auto"}: measures stages of the model before the job builds it,
// and chooses the schedule with the shortest simulated step that fits into memory.
//
// Example
//   const UnbuiltJob job{context, given, binding, packs, task, provider, schedule};
//   const TrainerConfig config = with_chosen_schedule(job, saved);
//   config.pipelining.schedule;                     // any schedule but auto
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

// Collective over the job. Returns the configuration with the chosen schedule in place of auto, the same on all ranks;
// other schedules stay. With one pipeline rank nothing is measured. A resumed job keeps the schedule that was chosen
// before, if its number of pipeline ranks and its keys of auto are the same, and if that schedule can run its
// microbatches. The main process logs the costs, the candidates and the choice, and writes
// AutoScheduleConfig::costs_file.
[[nodiscard]] TrainerConfig with_chosen_schedule(const UnbuiltJob& job, const std::optional<SavedCheckpoint>& saved);

// Returns trainer.pipelining.schedule as checkpoints store it, without costs_file, if it is auto; otherwise null.
[[nodiscard]] nlohmann::ordered_json auto_schedule_of(const TrainerConfig& config);

}  // namespace d9d
