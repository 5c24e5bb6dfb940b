// The configuration of a job that trains a causal language model on preferences: that of a pretraining job, whose data
// are pairs, with the section "dpo".
//
// Example
//   launch<DpoJobConfig<Qwen3DenseParameters>>(argc, argv, program);
#pragma once

#include "d9d/loop/language_model/dpo/dpo_config.h"
#include "d9d/loop/language_model/pretrain_config.h"

namespace d9d {

template <class Parameters>
struct DpoJobConfig {
  LaunchConfig launch = {};
  DeviceMeshParameters mesh = {};
  DataConfig data = {};                                    // pairs of answers
  std::map<std::string, DataConfig> evaluation_data = {};  // of the sets that trainer.evaluation names
  CausalLMProviderConfig<Parameters> model_provider = {};
  DpoConfig dpo = {};  // the loss
  TrainerConfig trainer = {};
  OptimizerConfig optimizer = {};                // what changes the parameters
  LRSchedulerConfig lr_scheduler = {};           // multipliers of the optimiser's learning rate
  std::filesystem::path export_to = {};          // folder for the trained model, in the format of Hugging Face
  std::optional<TextSamplesConfig> sample = {};  // text that the trained model generates; null: none

  static constexpr auto fields() {
    using Config = DpoJobConfig;
    return record<Config>(defaulted("launch", &Config::launch), required("mesh", &Config::mesh),
                          required("data", &Config::data), defaulted("evaluation_data", &Config::evaluation_data),
                          required("model_provider", &Config::model_provider), defaulted("dpo", &Config::dpo),
                          required("trainer", &Config::trainer), required("optimizer", &Config::optimizer),
                          required("lr_scheduler", &Config::lr_scheduler), required("export_to", &Config::export_to),
                          defaulted("sample", &Config::sample));
  }
};

}  // namespace d9d
