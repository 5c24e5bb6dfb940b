// What a checkpoint holds: tensors over the ranks of a job, and small values.
//
// Example
//   CheckpointState state;
//   for (const auto& [name, parameter] : model->named_parameters()) state.tensors.emplace(name, parameter->dtensor());
//   state.values["schedule"] = schedule.state();
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "d9d/core/dtensor/dtensor.h"

namespace d9d {

struct CheckpointState {
  // By name, what this rank has a part of (job_tensors). Saving reads the local parts, and loading fills them in place.
  // A mesh without axes means that all ranks which have the tensor hold the same whole one.
  std::map<std::string, DTensor> tensors = {};
  // Names of those that a model may change before the optimiser's next step, such as buffers.
  std::set<std::string> buffers = {};
  nlohmann::ordered_json values = nlohmann::ordered_json::object();  // those of the first rank are saved
  // Of each rank, where set. Called once by the thread that writes, so it must own what it reads.
  std::function<nlohmann::json()> rank_values = {};
};

}  // namespace d9d
