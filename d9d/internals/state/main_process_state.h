// State that only the main process has, such as a tracker's run. In a checkpoint of all ranks it is stored under a key
// of that rank; the other ranks store nothing.
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

// Local. Returns object.state_dict() with the prefix before each name; empty on other ranks.
template <class T>
[[nodiscard]] std::map<std::string, at::Tensor> main_process_state(const DistContext& context, const T& object) {
  std::map<std::string, at::Tensor> state;
  if (!context.is_main_process()) return state;
  for (const auto& [name, value] : object.state_dict()) state[cat(kMainProcessPrefix, name)] = value;
  return state;
}

// Local. Passes the entries with the prefix to object.load_state_dict(), without the prefix; does nothing on other
// ranks. Throws StateError if there are none, as in a checkpoint that was written without this object.
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
