// A whole job as a program would declare it, and the JSON that the tests of this folder modify.
#pragma once

#include <filesystem>
#include <string>

#include "d9d/base/check.h"
#include "d9d/base/config/json_text.h"
#include "d9d/blocks/head/head_config.h"
#include "d9d/core/mesh/device_mesh_parameters.h"
#include "d9d/data/build/config.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/lr_scheduler/config.h"
#include "d9d/models/qwen3_moe/config.h"
#include "d9d/optim/config.h"

namespace d9d {

struct JobModelProvider {
  Qwen3MoEParameters model = {};
  bool checkpointing = false;
  HeadConfig head = {};
  Dtype dtype = Dtype::kFloat32;
  static constexpr auto fields() {
    using Provider = JobModelProvider;
    return record<Provider>(required("model", &Provider::model), required("checkpointing", &Provider::checkpointing),
                            defaulted("head", &Provider::head), defaulted("dtype", &Provider::dtype));
  }
};

struct JobConfig {
  DeviceMeshParameters mesh = {};
  DataConfig data = {};
  JobModelProvider model_provider = {};
  TrainerConfig trainer = {};
  OptimizerConfig optimizer = {};
  LRSchedulerConfig lr_scheduler = {};
  std::filesystem::path export_to = {};
  static constexpr auto fields() {
    using Job = JobConfig;
    return record<Job>(required("mesh", &Job::mesh), required("data", &Job::data),
                       required("model_provider", &Job::model_provider), required("trainer", &Job::trainer),
                       required("optimizer", &Job::optimizer), required("lr_scheduler", &Job::lr_scheduler),
                       required("export_to", &Job::export_to));
  }
};

[[nodiscard]] JobConfig parse_job(const Json& json);

// The smallest `trainer` that d9d 0.24 accepts.
[[nodiscard]] Json minimal_trainer();

// A job of d9d 0.24.
[[nodiscard]] Json job_0_24();

// A job file of d9d 0.16, "pretrain.json" or "calculate_perplexity.json".
[[nodiscard]] Json file_of_0_16(const std::string& name);

// The pretraining example of d9d 0.16: it has other sections for batching and loading, and model.model.
[[nodiscard]] Json job_0_16();

// The text of the ConfigError that `call` throws, or "accepted".
template <class Call>
[[nodiscard]] std::string config_error_of(const Call& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace d9d
