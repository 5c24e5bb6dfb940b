// How a trained model is exported: to a folder in the layout of the Hugging Face hub.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "d9d/model_state/mapper/state_mapper.h"

namespace d9d {

struct ModelExport {
  StateMapper mapper;                             // from the model's tensors to the exported ones
  std::map<std::string, std::string> files = {};  // text files beside the weights, by name: config.json, ...
  std::optional<std::string> only_file = {};      // WriteOptions::only_file
  bool is_whole = true;                           // whether it is news if a tensor of the model is not exported
  std::vector<std::string> warnings = {};         // what readers do not take of it
};

}  // namespace d9d
