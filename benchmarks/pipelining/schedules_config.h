// The configuration of pipelining_benchmark: schedules.json beside it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "d9d/base/config/describe.h"
#include "d9d/base/dtype.h"
#include "d9d/core/launch/launch.h"
#include "d9d/core/peer_memory/exchange_method.h"
#include "d9d/models/qwen3_dense/config.h"
#include "d9d/pipelining/schedules/pipeline_schedule_config.h"

namespace benchmarks {

// Of a layer of a dense Qwen3.
struct LayerSizes {
  std::int64_t hidden_size = 1;
  std::int64_t intermediate_size = 1;
  std::int64_t num_attention_heads = 1;
  std::int64_t num_key_value_heads = 1;
  std::int64_t head_dim = 2;

  static constexpr auto fields() {
    return d9d::record<LayerSizes>(
        d9d::required("hidden_size", &LayerSizes::hidden_size, d9d::at_least(1)),
        d9d::required("intermediate_size", &LayerSizes::intermediate_size, d9d::at_least(1)),
        d9d::required("num_attention_heads", &LayerSizes::num_attention_heads, d9d::at_least(1)),
        d9d::required("num_key_value_heads", &LayerSizes::num_key_value_heads, d9d::at_least(1)),
        d9d::required("head_dim", &LayerSizes::head_dim, d9d::at_least(2)));
  }

  [[nodiscard]] d9d::Qwen3DenseLayerParameters parameters() const {
    return {.hidden_size = hidden_size,
            .intermediate_size = intermediate_size,
            .num_attention_heads = num_attention_heads,
            .num_key_value_heads = num_key_value_heads,
            .head_dim = head_dim};
  }
};

struct SchedulesConfig {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  LayerSizes layer = {};
  d9d::Dtype dtype = d9d::Dtype::kBFloat16;
  std::int64_t num_layers = 1;  // of all stages: a multiple of the stages
  std::int64_t tokens = 1;      // of a microbatch, one sequence
  std::int64_t num_microbatches = 1;
  std::vector<d9d::ExchangeMethod> messages = {d9d::ExchangeMethod::kCopyEngine, d9d::ExchangeMethod::kCommunicator};
  std::int64_t max_stages_per_rank = 2;
  std::vector<d9d::PipelineScheduleConfig> schedules = {};  // none: all that train
  std::int64_t num_warm_up_steps = 5;
  std::int64_t num_steps = 15;
  std::int64_t num_recorded_steps = 5;
  std::int64_t num_repeats = 10;      // of measured costs
  std::filesystem::path traces = {};  // a folder for traces and pictures of simulated and recorded steps

  static constexpr auto fields() {
    using Config = SchedulesConfig;
    return d9d::record<Config>(d9d::defaulted("launch", &Config::launch), d9d::required("mesh", &Config::mesh),
                               d9d::required("layer", &Config::layer), d9d::defaulted("dtype", &Config::dtype),
                               d9d::required("num_layers", &Config::num_layers, d9d::at_least(1)),
                               d9d::required("tokens", &Config::tokens, d9d::at_least(1)),
                               d9d::required("num_microbatches", &Config::num_microbatches, d9d::at_least(1)),
                               d9d::defaulted("messages", &Config::messages),
                               d9d::defaulted("max_stages_per_rank", &Config::max_stages_per_rank, d9d::at_least(1)),
                               d9d::defaulted("schedules", &Config::schedules),
                               d9d::defaulted("num_warm_up_steps", &Config::num_warm_up_steps, d9d::at_least(1)),
                               d9d::defaulted("num_steps", &Config::num_steps, d9d::at_least(1)),
                               d9d::defaulted("num_recorded_steps", &Config::num_recorded_steps, d9d::at_least(1)),
                               d9d::defaulted("num_repeats", &Config::num_repeats, d9d::at_least(1)),
                               d9d::defaulted("traces", &Config::traces));
  }
};

}  // namespace benchmarks
