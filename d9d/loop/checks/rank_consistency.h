// Compares between the ranks of a job what must be equal on them. Without these checks, a job whose ranks were
// configured differently would run, but train something that no rank was configured for.
//
//   what                                               on which ranks           when
//   configuration of trainer, task, model, optimiser   all                      once, while the job is built
//     and schedules; the optimiser's learning rate
//     and the scheduler's factor; folder of the export
//   names, shapes, dtypes and requires_grad of         those with the same      when the stages are built, and
//     parameters                                         pipeline stages          after kTrainModelStagesReady
//   requires_grad of each parameter (FreezeGuard)      each with its own value  before each forward
//                                                        at the build
//   number of microbatches of a step                   those that communicate   before the first forward of
//     (equal_microbatches.h)                             during a microbatch      each step
//   state of the data stream and of the schedules      all                      at each save
//     (equal_at_saves)
//   parameters, optimiser's state, buffers             those with the same      at each save
//     (shared_values.h)                                  elements or names
//
// Example
//   check_equal_config(context, config, {{"optimizer", optimizer.dump_hparams()}});
//   ...                                                   // model, optimiser and schedule
//   check_equal_model(context, module);
//   check_equal_rates(context, optimizer.learning_rate(), lr_scheduler.factor());
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "d9d/checkpoint/checkpoint_state.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/modules/module.h"
#include "d9d/pipelining/program/stage_placement.h"

namespace d9d {

// Converts a JSON pointer to the form in which messages name keys: "/optimizer/lr" -> "optimizer.lr".
[[nodiscard]] std::string dotted_key(const std::string& pointer);

// All check_equal_*() are collective. If values differ, they throw ConfigError on all ranks; its text names the
// difference and two ranks that differ.

// Compares all settings except trainer.run and trainer.logging.tracker, which only the main process reads. hparams: an
// object with the settings of the other parts of the job.
void check_equal_config(const DistContext& context, const TrainerConfig& config, const nlohmann::json& hparams);
void check_equal_export(const DistContext& context, const std::filesystem::path& folder);
// Compares the name of the schedule and the rank of each pipeline stage.
void check_equal_schedule(const DistContext& context, const std::string& name, const StagePlacement& placement);
// Compares the parameters on the ranks that have the same pipeline stages.
void check_equal_model(const DistContext& context, const Module& module);
void check_equal_rates(const DistContext& context, double learning_rate, double factor);

// Returns CheckpointState::equal_values of a job: the values that a checkpoint contains once and that must therefore be
// equal on all ranks.
[[nodiscard]] std::map<std::string, EqualValue> equal_at_saves();
// Returns CheckpointState::copies: if several stages of this rank have a persistent buffer of the same name, all these
// buffers but the first. module: local_stages(stages). prefix: prepended to the names, as in the checkpoint.
[[nodiscard]] std::multimap<std::string, at::Tensor> copies_of_buffers(
    const Module& module, const std::vector<std::shared_ptr<Module>>& stages, const std::string& prefix);

}  // namespace d9d
