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

// A value that all ranks must give alike: "expected <rule>, got ... on rank 0 and ... on rank 1. <remedy>".
struct EqualValue {
  std::string rule;
  std::string remedy;
};

struct CheckpointState {
  // By name, what this rank has a part of (job_tensors). Saving reads the local parts, and loading fills them in place.
  // A mesh without axes means that all ranks which have the tensor hold the same whole one. No checkpoint is made if
  // ranks that hold the same elements have other values (shared_values.h).
  std::map<std::string, DTensor> tensors = {};
  // Names of those that a model may change before the optimiser's next step, such as buffers.
  std::set<std::string> buffers = {};
  nlohmann::ordered_json values = nlohmann::ordered_json::object();  // those of the first rank are saved
  // Further tensors of this rank that must have the values of the one of their name: a buffer that several of its
  // pipeline stages have.
  std::multimap<std::string, at::Tensor> copies = {};
  // Names of `values` that no rank may give otherwise.
  std::map<std::string, EqualValue> equal_values = {};
  // Of each rank, where set. Called once by the thread that writes, so it must own what it reads.
  std::function<nlohmann::json()> rank_values = {};
};

}  // namespace d9d
