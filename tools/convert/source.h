// What d9d_convert reads: a folder in the layout of the Hugging Face hub, or a checkpoint of a training job.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "d9d/blocks/head/head_config.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/peft/adapted_model.h"

#include "tools/convert/options.h"

namespace d9d::convert {

struct Source {
  std::shared_ptr<const void> opened;             // from which `tensors` read
  NamedTensors tensors;                           // of a checkpoint: those of the model, by its own names
  std::optional<HeadConfig> head = {};            // of the model; none: as the names of its tensors say
  std::function<nlohmann::json()> read_config;    // config.json of the model. Throws if there is none
  std::map<std::string, std::string> files;       // text files beside the weights, by name
  std::optional<AdaptedModel> adapted = {};       // of a checkpoint of a job that trains adapters
  std::optional<StateMapper> published = {};      // its tensors, without adapters, in the names of Hugging Face
  std::optional<std::string> base = {};           // the model that these adapters belong to
  bool has_untied_head = false;                   // HuggingFaceDirectory::has_untied_head()
  std::optional<std::string> ignored_index = {};  // ignored_index() of the folder
};

// Opens options.source. Of a checkpoint the weights of options.weights are read, and no optimiser state;
// config.json is made from the sizes that it has, and options.to, options.vocabulary, options.dtype and
// options.adapters, where they are not given, are set to those of an export. Throws IoError.
[[nodiscard]] Source open_source(Options& options);

}  // namespace d9d::convert
