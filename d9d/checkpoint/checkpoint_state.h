// The content of a checkpoint: tensors that are distributed over the ranks of a job, and small values.
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

// Parts of the error message for a value that differs between ranks: "expected <rule>, got ... on rank 0 and ... on
// rank 1. <remedy>".
struct EqualValue {
  std::string rule;
  std::string remedy;
};

struct CheckpointState {
  // The tensors of which this rank has a part, by name (job_tensors). Saving reads the local parts, and loading fills
  // them in place. A mesh without axes means that all ranks which have the tensor hold the same whole tensor. Saving
  // fails if ranks hold different values of the same elements (shared_values.h).
  std::map<std::string, DTensor> tensors = {};
  // Names of the tensors that a model may change before the optimiser's next step, such as buffers.
  std::set<std::string> buffers = {};
  nlohmann::ordered_json values = nlohmann::ordered_json::object();  // the values of the first rank are saved
  // Further copies of a tensor on this rank, by the tensor's name: several pipeline stages of this rank may have the
  // same buffer, for instance. Saving checks that the copies equal the tensor, and does not write them.
  std::multimap<std::string, at::Tensor> copies = {};
  // The keys of `values` whose values must be equal on all ranks, and the text of the error otherwise.
  std::map<std::string, EqualValue> equal_values = {};
  // Returns the values that are saved for this rank alone. Null: there are none. Called once, possibly on a background
  // thread, so it must own what it reads.
  std::function<nlohmann::json()> rank_values = {};
};

}  // namespace d9d
