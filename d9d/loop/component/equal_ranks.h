// Ranks of one job that were given different things, found before they train: a configuration that a rank changed, a
// model of another size, another learning rate. Without a check the job would run, and train nothing that one rank can.
//
// Example
//   check_equal_config(context, config);
//   ...                                                   // model, optimiser and schedule
//   check_equal_model(context, module);
//   check_equal_rates(context, optimizer.learning_rate(), lr_scheduler.factor());
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/modules/module.h"
#include "d9d/pipelining/program/stage_placement.h"

namespace d9d {

// All are Collective, and throw ConfigError on all ranks.

// Every key but those of the tracker and of run, which the main process alone reads.
void check_equal_config(const DistContext& context, const TrainerConfig& config);
// Where the stages of a pipeline lie, and the schedule's name.
void check_equal_schedule(const DistContext& context, const std::string& name, const StagePlacement& placement);
// Names, shapes and dtypes of parameters, on the ranks of one pipeline stage.
void check_equal_model(const DistContext& context, const Module& module);
void check_equal_rates(const DistContext& context, double learning_rate, double factor);
// The state of the data stream, of which a checkpoint has one.
void check_equal_data_state(const DistContext& context, const nlohmann::json& state);
// The values of buffers that several stages of a pipeline have under one name, of which a checkpoint has one. stages:
// of this rank.
void check_equal_buffers(const DistContext& context, const std::vector<std::shared_ptr<Module>>& stages);

}  // namespace d9d
