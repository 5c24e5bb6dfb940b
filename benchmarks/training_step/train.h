// Steps of a pretraining example, timed by events of the device at the end of each, and its start by the host's clock:
// training, and nothing written but a report. The scripts of this folder drive the programs.
//
//   training_step_dense_benchmark CONFIG.json    like examples/qwen3_dense/pretrain/pretrain.json, with "report" and
//                                                "trace" instead of "export_to"; training_step_moe_benchmark likewise
#pragma once

#include <chrono>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>

#include "d9d/base/config/describe.h"
#include "d9d/core/device/moment.h"
#include "d9d/core/launch/launch.h"
#include "d9d/loop/config/aliases.h"
#include "d9d/loop/language_model/auto_data_provider.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/language_model/causal_lm_provider.h"
#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/run/trainer.h"

#include "benchmarks/training_step/device_trace.h"

namespace benchmarks {

struct TraceConfig {
  std::filesystem::path folder = {};  // rank<r>.json
  std::int64_t first_step = 0;
  std::int64_t num_steps = 3;

  static constexpr auto fields() {
    return d9d::record<TraceConfig>(d9d::required("folder", &TraceConfig::folder),
                                    d9d::required("first_step", &TraceConfig::first_step, d9d::at_least(1)),
                                    d9d::defaulted("num_steps", &TraceConfig::num_steps, d9d::at_least(1)));
  }
};

template <class Parameters>
struct BenchmarkConfig {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  d9d::DataConfig data = {};
  d9d::CausalLMProviderConfig<Parameters> model_provider = {};
  d9d::TrainerConfig trainer = {};
  d9d::OptimizerConfig optimizer = {};
  d9d::LRSchedulerConfig lr_scheduler = {};
  std::filesystem::path report = {};   // JSON: what the first rank measured
  std::int64_t num_warm_up_steps = 1;  // that the peak of memory leaves out
  std::optional<TraceConfig> trace = {};

  static constexpr auto fields() {
    using Config = BenchmarkConfig;
    return d9d::record<Config>(
        d9d::defaulted("launch", &Config::launch), d9d::required("mesh", &Config::mesh),
        d9d::required("data", &Config::data), d9d::required("model_provider", &Config::model_provider),
        d9d::required("trainer", &Config::trainer), d9d::required("optimizer", &Config::optimizer),
        d9d::required("lr_scheduler", &Config::lr_scheduler), d9d::required("report", &Config::report),
        d9d::required("num_warm_up_steps", &Config::num_warm_up_steps, d9d::at_least(1)),
        d9d::defaulted("trace", &Config::trace));
  }
};

// Of this process's device.
struct Memory {
  std::int64_t allocated = 0;
  std::int64_t reserved = 0;
};

inline Memory peak_memory(c10::Device device) {
  if (device.is_cpu()) return {};
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return {.allocated = stats.allocated_bytes[kAll].peak, .reserved = stats.reserved_bytes[kAll].peak};
}

// When a program came how far, by the clock that all processes of the machine share (CLOCK_MONOTONIC).
class Phases {
 public:
  Phases() { reach("main"); }

  void reach(const char* name) { seconds_.emplace_back(name, now()); }
  [[nodiscard]] nlohmann::json seconds() const { return seconds_; }

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  std::vector<std::pair<std::string, double>> seconds_;
};

// Watches the steps of a job.
template <class Config>
class StepWatch {
 public:
  StepWatch(const Config& config, const d9d::DistContext& context, d9d::EventBus& events, Phases& phases)
      : config_(config), context_(context), phases_(phases) {
    events.subscribe(d9d::kTrainDataStreamReady<d9d::TokenBatch>,
                     [this](const d9d::DataStreamReady<d9d::TokenBatch>&) { phases_.reach("data"); });
    events.subscribe(d9d::kTrainModelStagesReady, [this](const d9d::ModelStagesReady&) { phases_.reach("weights"); });
    events.subscribe(d9d::kTrainReady, [this](const d9d::TrainReady&) { phases_.reach("optimizer"); });
    events.subscribe(d9d::kTrainForwardBackwardPost, [this](const d9d::TrainStep& step) {
      if (step.schedule.current_step() == 0) phases_.reach("backward queued");
    });
    events.subscribe(d9d::kTrainStepPre, [this](const d9d::TrainStep& step) { begin(step.schedule.current_step()); });
    events.subscribe(d9d::kTrainStepPost, [this](const d9d::TrainStep& step) { end(step.schedule.current_step()); });
    events.subscribe(d9d::kTrainFinished, [this](const d9d::TrainFinished&) { report(); });
  }

 private:
  void begin(std::int64_t step) const {
    if (config_.trace && step == config_.trace->first_step) {
      wait_for_last_step();
      begin_device_trace();
    }
  }

  void end(std::int64_t step) {
    ends_.emplace_back(context_.device());
    if (step == 0) {
      wait_for_last_step();
      phases_.reach("first step");
    }
    if (step + 1 == config_.num_warm_up_steps && !context_.device().is_cpu()) {
      c10::getDeviceAllocator(context_.device().type())->resetPeakStats(context_.device().index());
    }
    if (config_.trace && step + 1 == config_.trace->first_step + config_.trace->num_steps) {
      wait_for_last_step();
      end_device_trace(config_.trace->folder / d9d::cat("rank", context_.rank(), ".json"));
    }
  }

  void wait_for_last_step() const { (void)ends_.back().seconds_until(ends_.back()); }

  void report() const {
    if (!context_.is_main_process()) return;
    nlohmann::json step_ms = nlohmann::json::array();
    for (std::size_t i = 1; i < ends_.size(); ++i) step_ms.push_back(1e3 * ends_[i - 1].seconds_until(ends_[i]));
    const Memory peak = peak_memory(context_.device());
    std::ofstream(config_.report) << nlohmann::json{{"phases", phases_.seconds()},
                                                    {"step_ms", step_ms},
                                                    {"peak_allocated_bytes", peak.allocated},
                                                    {"peak_reserved_bytes", peak.reserved}};
  }

  const Config& config_;
  const d9d::DistContext& context_;
  Phases& phases_;
  std::vector<d9d::Moment> ends_;
};

template <class Parameters>
class BenchmarkProvider : public d9d::CausalLMProvider<Parameters> {
 public:
  using Config = BenchmarkConfig<Parameters>;

  BenchmarkProvider(const d9d::ModelFamily<Parameters>& model_family, const Config& all, Parameters resolved_sizes,
                    Phases& phases)
      : d9d::CausalLMProvider<Parameters>(model_family, all.model_provider, std::move(resolved_sizes)),
        all_(all),
        phases_(phases) {}

  void register_events(const d9d::DistContext& context, d9d::EventBus& events) override {
    watch_ = std::make_unique<StepWatch<Config>>(all_, context, events, phases_);
  }

 private:
  const Config& all_;
  Phases& phases_;
  std::unique_ptr<StepWatch<Config>> watch_;
};

template <class Parameters>
void train(const d9d::ModelFamily<Parameters>& family, const BenchmarkConfig<Parameters>& config,
           d9d::DistContext& context, Phases& phases) {
  phases.reach("device");
  const auto sizes =
      d9d::causal_lm_sizes(family, config.model_provider, config.trainer.model_stage_factory.source_checkpoint);
  d9d::LanguageModelTask task(context);
  BenchmarkProvider model(family, config, sizes, phases);
  const d9d::VocabularySplits vocabulary{.sizes = sizes.split_vocab_size, .order = sizes.split_vocab_order};
  auto data = d9d::token_data_provider(config.data,
                                       {.vocabulary_size = vocabulary.total(), .max_positions = sizes.max_position_ids},
                                       config.trainer.determinism.base_seed);
  d9d::AutoOptimizerProvider optimizer(config.optimizer);
  d9d::AutoLRSchedulerProvider lr_scheduler(config.lr_scheduler);
  d9d::Trainer<d9d::LanguageModelTypes> trainer(
      context, config.trainer,
      {.task = task, .model = model, .data = data, .optimizer = optimizer, .lr_scheduler = lr_scheduler});
  trainer.train();
}

// The program of a family.
template <class Parameters>
int run(const d9d::ModelFamily<Parameters>& family, int argc, char** argv) {
  using Config = BenchmarkConfig<Parameters>;
  Phases phases;
  return d9d::launch<Config>(
      argc, argv, [&](const Config& config, d9d::DistContext& context) { train(family, config, context, phases); },
      d9d::apply_0_16_aliases);
}

}  // namespace benchmarks
