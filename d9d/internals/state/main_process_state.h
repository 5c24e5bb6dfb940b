// State that the main process alone has, such as a tracker's run: in a checkpoint of all ranks it is under one key of
// that rank, and the others have none.
//
// Example
//   const StateDict state = main_process_state(context, tracker);           // {"main_process.run": ...} on rank 0
//   load_main_process_state(context, tracker, state);
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/base/check.h"
#include "d9d/core/dist_context/dist_context.h"

namespace d9d {

inline constexpr std::string_view kMainProcessPrefix = "main_process.";

// Local. What object.state_dict() says, each name behind the prefix; empty on other ranks.
template <class T>
[[nodiscard]] std::map<std::string, at::Tensor> main_process_state(const DistContext& context, const T& object) {
  std::map<std::string, at::Tensor> state;
  if (!context.is_main_process()) return state;
  for (const auto& [name, value] : object.state_dict()) state[cat(kMainProcessPrefix, name)] = value;
  return state;
}

// Local. Hands the names behind the prefix to object.load_state_dict(); nothing happens on other ranks. Throws
// StateError if there are none, as in a checkpoint that was written without this object.
template <class T>
void load_main_process_state(const DistContext& context, T& object, const std::map<std::string, at::Tensor>& state) {
  if (!context.is_main_process()) return;
  std::map<std::string, at::Tensor> own;
  for (const auto& [name, value] : state) {
    if (name.starts_with(kMainProcessPrefix)) own[name.substr(kMainProcessPrefix.size())] = value;
  }
  D9D_CHECK(!own.empty(), StateError, "[internals::state] expected names that begin with '", kMainProcessPrefix,
            "' in the state of rank 0, got none of ", state.size(),
            ". Was the checkpoint written without this object? Leave it out of what is loaded.");
  object.load_state_dict(own);
}

}  // namespace d9d
