// The configuration of a job that pretrains or fine-tunes a causal language model; the examples use it. Parameters: the
// record of the model's sizes.
//
// Example
//   launch<PretrainConfig<Qwen3DenseParameters>>(argc, argv, program, apply_0_16_aliases);
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "d9d/base/record.h"
#include "d9d/core/launch/launch.h"
#include "d9d/core/mesh/device_mesh_parameters.h"
#include "d9d/data/build/config.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/language_model/causal_lm_provider.h"
#include "d9d/loop/language_model/text_samples.h"
#include "d9d/lr_scheduler/config.h"
#include "d9d/optim/config.h"

namespace d9d {

template <class Parameters>
struct PretrainConfig {
  LaunchConfig launch = {};
  DeviceMeshParameters mesh = {};
  DataConfig data = {};                                    // what the model is trained on
  std::map<std::string, DataConfig> evaluation_data = {};  // of the sets that trainer.evaluation names
  CausalLMProviderConfig<Parameters> model_provider = {};
  TrainerConfig trainer = {};
  OptimizerConfig optimizer = {};                // what changes the parameters
  LRSchedulerConfig lr_scheduler = {};           // multipliers of the optimiser's learning rate
  std::filesystem::path export_to = {};          // folder for the trained model, in the format of Hugging Face
  std::optional<TextSamplesConfig> sample = {};  // text that the trained model generates; null: none

  static constexpr auto fields() {
    using Config = PretrainConfig;
    return record<Config>(defaulted("launch", &Config::launch), required("mesh", &Config::mesh),
                          required("data", &Config::data), defaulted("evaluation_data", &Config::evaluation_data),
                          required("model_provider", &Config::model_provider), required("trainer", &Config::trainer),
                          required("optimizer", &Config::optimizer), required("lr_scheduler", &Config::lr_scheduler),
                          required("export_to", &Config::export_to), defaulted("sample", &Config::sample));
  }
};

}  // namespace d9d
