// Settings of a training and of an inference job: each service of the loop has one record, which is one section in
// JSON.
//
// Example
//   {"run": {"name": "qwen3"}, "logging": {"period_steps": 5, "tracker": {"provider": "log"}},
//    "determinism": {"base_seed": 1337}, "gc": {"period_steps": 10},
//    "checkpointing": {"save_dir": "checkpoints", "period_steps": 1000}, "gradient_clipping": {"max_norm": 1.0}}
//
// Required keys have no meaningful default; C++ defaults of their members only make the records constructible.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/dtype.h"
#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"
#include "d9d/core/peer_memory/exchange_method.h"
#include "d9d/loop/config/memory_budget_config.h"
#include "d9d/loop/config/step_action_period.h"
#include "d9d/optim/ema.h"
#include "d9d/pipelining/schedules/pipeline_schedule_config.h"
#include "d9d/tracker/config.h"

namespace d9d {

struct RunConfig {
  std::string name = {};                              // of the run in logs and trackers
  std::optional<std::string> description = {};        // goes to the tracker
  nlohmann::json hparams = nlohmann::json::object();  // any object; goes to the tracker

  void validate(const ConfigPath& path) const;

  static constexpr auto fields() {
    return record<RunConfig>(required("name", &RunConfig::name), defaulted("description", &RunConfig::description),
                             defaulted("hparams", &RunConfig::hparams));
  }
};

struct ScheduleConfig {
  std::optional<std::int64_t> total_steps = {};  // null: as many as the data provides

  static constexpr auto fields() {
    return record<ScheduleConfig>(defaulted("total_steps", &ScheduleConfig::total_steps, at_least(1)));
  }
};

struct DataPrefetchConfig {
  std::int64_t prefetch_factor = 1;  // packs copied to the device in advance; 0: copied when the step starts

  static constexpr auto fields() {
    return record<DataPrefetchConfig>(defaulted("prefetch_factor", &DataPrefetchConfig::prefetch_factor, at_least(0)));
  }
};

struct LoggingConfig {
  StepActionPeriod period_steps = {};  // when a step is logged
  TrackerConfig tracker = {};          // where logged values go
  // How many steps later the values of a step are written to trackers at the latest. Until then they are written when
  // they have been copied from the device, so that no step waits for them.
  std::int64_t max_pending_steps = 2;
  // When the norms of gradients and of parameters of each layer are logged (layer_of() in part_norms.h).
  StepActionPeriod norms_by_layer = {StepActionMode::kDisable};

  static constexpr auto fields() {
    return record<LoggingConfig>(required("period_steps", &LoggingConfig::period_steps),
                                 required("tracker", &LoggingConfig::tracker),
                                 defaulted("max_pending_steps", &LoggingConfig::max_pending_steps, at_least(1)),
                                 defaulted("norms_by_layer", &LoggingConfig::norms_by_layer));
  }
};

struct PipeliningConfig {
  PipelineScheduleConfig schedule = {};             // order of forwards and backwards of the stages
  ExchangeMethod messages = ExchangeMethod::kAuto;  // how activations and gradients go from stage to stage

  static constexpr auto fields() {
    return record<PipeliningConfig>(defaulted("schedule", &PipeliningConfig::schedule),
                                    defaulted("messages", &PipeliningConfig::messages));
  }
};

struct ModelStageFactoryConfig {
  std::optional<std::filesystem::path> source_checkpoint = {};  // source of the initial weights; null: random
  // Regular expression. Parameters whose whole name it matches, for instance those of a new head, may be missing in
  // source_checkpoint and then keep their initial values. null: none may be missing.
  std::optional<std::string> source_may_lack = {};
  // A folder with adapters in the format of Hugging Face peft, from which the adapters of the job begin; null: A
  // random, B zero.
  std::optional<std::filesystem::path> source_adapters = {};
  bool checkpoint_only_trainable_parameters = false;  // frozen ones come from source_checkpoint or the seed
  // The dtype of master weights: trained parameters are kept and updated in it. It must be at least as wide as the
  // dtype that the model computes in. null: the dtype that the model computes in. See mixed_precision.h.
  std::optional<Dtype> master_dtype = {};

  static constexpr auto fields() {
    using Factory = ModelStageFactoryConfig;
    return record<Factory>(
        defaulted("source_checkpoint", &Factory::source_checkpoint),
        defaulted("source_may_lack", &Factory::source_may_lack),
        defaulted("source_adapters", &Factory::source_adapters),
        defaulted("checkpoint_only_trainable_parameters", &Factory::checkpoint_only_trainable_parameters),
        defaulted("master_dtype", &Factory::master_dtype));
  }
};

struct DeterminismConfig {
  std::int64_t base_seed = 0;  // of initial weights, dropout, the order of data and stochastic rounding

  static constexpr auto fields() {
    return record<DeterminismConfig>(required("base_seed", &DeterminismConfig::base_seed));
  }
};

struct GarbageCollectionConfig {
  StepActionPeriod period_steps = {};  // when freed host memory, pinned memory too, is returned to the system

  static constexpr auto fields() {
    return record<GarbageCollectionConfig>(required("period_steps", &GarbageCollectionConfig::period_steps));
  }
};

// What a job does when a checkpoint cannot be written: `stop` ends the job with an error, `continue` logs the error.
// Earlier checkpoints stay. If the checkpoint after the last step cannot be written, the model is still exported, and
// then the program ends with an error under both policies.
enum class FailedSavePolicy { kStop, kContinue };
constexpr auto enum_names(FailedSavePolicy) {
  return std::to_array<EnumName<FailedSavePolicy>>(
      {{FailedSavePolicy::kStop, "stop"}, {FailedSavePolicy::kContinue, "continue"}});
}

struct CheckpointingConfig {
  std::filesystem::path save_dir = {};           // folder of the job's checkpoints, from which it also continues
  StepActionPeriod period_steps = {};            // when a checkpoint is saved
  std::optional<std::int64_t> num_to_keep = {};  // of the newest checkpoints; null: all
  FailedSavePolicy on_failed_save = FailedSavePolicy::kStop;  // end the job with an error, or log the error

  static constexpr auto fields() {
    using Checkpointing = CheckpointingConfig;
    return record<Checkpointing>(required("save_dir", &Checkpointing::save_dir),
                                 required("period_steps", &Checkpointing::period_steps),
                                 defaulted("num_to_keep", &Checkpointing::num_to_keep, at_least(1)),
                                 defaulted("on_failed_save", &Checkpointing::on_failed_save));
  }
};

// Exports of the model while it is trained: that of step n goes to <folder>/step-<n>.
struct ExportsConfig {
  std::filesystem::path folder = {};   // of the exports; each step has a folder of its own in it
  StepActionPeriod period_steps = {};  // steps between two exports

  static constexpr auto fields() {
    using Exports = ExportsConfig;
    return record<Exports>(required("folder", &Exports::folder), required("period_steps", &Exports::period_steps));
  }
};

// Which value of a metric is better.
enum class BestMode { kMin, kMax };
constexpr auto enum_names(BestMode) {
  return std::to_array<EnumName<BestMode>>({{BestMode::kMin, "min"}, {BestMode::kMax, "max"}});
}

// What a job does after its best evaluation on a set so far: it saves a checkpoint and can export the model.
// num_to_keep does not count this checkpoint, which stays until an evaluation is better.
struct BestConfig {
  std::string metric = "loss";     // a value of the evaluation: "loss", "loss/<name>" or the name of a metric
  BestMode mode = BestMode::kMin;  // whether a smaller or a larger value is better
  std::optional<std::filesystem::path> export_to = {};  // where the best model is exported; null: nowhere

  static constexpr auto fields() {
    return record<BestConfig>(defaulted("metric", &BestConfig::metric), defaulted("mode", &BestConfig::mode),
                              defaulted("export_to", &BestConfig::export_to));
  }
};

// When a training job evaluates its model on one of its evaluation sets (TrainerParts::evaluation).
struct EvaluationConfig {
  StepActionPeriod period_steps = {};  // also evaluated after the last step, unless disabled
  bool at_start = false;               // also before the first step of the job
  std::optional<std::int64_t> max_packs =
      {};  // evaluates on so many packs of each rank at most; null: on the whole set
  std::optional<BestConfig> best = {};

  static constexpr auto fields() {
    using Evaluation = EvaluationConfig;
    return record<Evaluation>(
        required("period_steps", &Evaluation::period_steps), defaulted("at_start", &Evaluation::at_start),
        defaulted("max_packs", &Evaluation::max_packs, at_least(1)), defaulted("best", &Evaluation::best));
  }
};

// The weights that evaluations use.
enum class EvaluatedWeights { kAveraged, kTrained, kBoth };
constexpr auto enum_names(EvaluatedWeights) {
  return std::to_array<EnumName<EvaluatedWeights>>({{EvaluatedWeights::kAveraged, "averaged"},
                                                    {EvaluatedWeights::kTrained, "trained"},
                                                    {EvaluatedWeights::kBoth, "both"}});
}

// The weights that exports contain.
enum class ExportedWeights { kAveraged, kTrained };
constexpr auto enum_names(ExportedWeights) {
  return std::to_array<EnumName<ExportedWeights>>(
      {{ExportedWeights::kAveraged, "averaged"}, {ExportedWeights::kTrained, "trained"}});
}

// Averages of the trained parameters over steps (exponential moving average), in float32, or float64 for float64
// parameters: of master weights where there are any. Checkpoints contain them.
struct AveragedWeightsConfig {
  EmaConfig average = {};
  // The weights that evaluations use. both: values of the averages are named "ema/<value>", such as "ema/loss".
  EvaluatedWeights evaluate = EvaluatedWeights::kAveraged;
  ExportedWeights exported = ExportedWeights::kAveraged;  // the weights that all exports of the job contain

  static constexpr auto fields() {
    using Averaged = AveragedWeightsConfig;
    return record<Averaged>(flattened(&Averaged::average), defaulted("evaluate", &Averaged::evaluate),
                            defaulted("export", &Averaged::exported));
  }
};

// What happens when a step's loss or gradient norm is NaN or infinite.
enum class NonFinitePolicy { kStop, kSkip };
constexpr auto enum_names(NonFinitePolicy) {
  return std::to_array<EnumName<NonFinitePolicy>>({{NonFinitePolicy::kStop, "stop"}, {NonFinitePolicy::kSkip, "skip"}});
}

// A step whose loss or gradient norm is far above those of earlier steps is a spike. It is found on the device, before
// the optimiser's step.
struct SpikeConfig {
  double num_deviations = 6.0;      // standard deviations above the mean at which a spike begins
  std::int64_t window_steps = 128;  // how many earlier steps the mean and the deviation are of; half of them at least
  NonFinitePolicy on_spike = NonFinitePolicy::kSkip;  // stop: the job ends; skip: the step changes nothing

  static constexpr auto fields() {
    using Spike = SpikeConfig;
    return record<Spike>(defaulted("num_deviations", &Spike::num_deviations, greater_than(0)),
                         defaulted("window_steps", &Spike::window_steps, at_least(2)),
                         defaulted("on_spike", &Spike::on_spike));
  }
};

struct GradientClippingConfig {
  std::optional<double> max_norm = {};                     // null: the norm is measured but nothing is clipped
  StepActionPeriod log_total_steps = {EverySteps{1}};      // when the norm is logged
  NonFinitePolicy on_non_finite = NonFinitePolicy::kStop;  // skip: the step changes nothing
  std::optional<SpikeConfig> spikes = {};                  // null: no step is a spike
  // After how many steps in a row that changed nothing the job ends with an error; null: never or, with `spikes`, half
  // of their window, since a loss that stays high is no spike.
  std::optional<std::int64_t> max_skipped_in_a_row = {};

  static constexpr auto fields() {
    return record<GradientClippingConfig>(
        required("max_norm", &GradientClippingConfig::max_norm, greater_than(0)),
        defaulted("log_total_steps", &GradientClippingConfig::log_total_steps),
        defaulted("on_non_finite", &GradientClippingConfig::on_non_finite),
        defaulted("spikes", &GradientClippingConfig::spikes),
        defaulted("max_skipped_in_a_row", &GradientClippingConfig::max_skipped_in_a_row, at_least(1)));
  }
};

// The profiler runs in the last warmup_steps + active_steps steps of every period and records the last active_steps:
// StepProfiler.
struct ProfilingConfig {
  std::filesystem::path traces_dir = {};                // folder of the traces
  std::int64_t period_steps = 1;                        // of which the last steps are recorded
  std::int64_t warmup_steps = 0;                        // the profiler runs and records nothing
  std::int64_t active_steps = 1;                        // that are recorded
  bool record_shapes = true;                            // of the operators' inputs
  bool with_stack = true;                               // names the calls of modules; there are no frames of C++
  std::optional<std::vector<std::int64_t>> ranks = {};  // which record; null: all
  bool memory_snapshots = false;  // also writes what the allocators of CUDA devices did (memory_history.h)

  // Throws ConfigError unless warmup_steps + active_steps <= period_steps.
  void validate(const ConfigPath& path) const;

  static constexpr auto fields() {
    using Profiling = ProfilingConfig;
    return record<Profiling>(
        required("traces_dir", &Profiling::traces_dir), required("period_steps", &Profiling::period_steps, at_least(1)),
        required("warmup_steps", &Profiling::warmup_steps, at_least(0)),
        required("active_steps", &Profiling::active_steps, at_least(1)),
        defaulted("record_shapes", &Profiling::record_shapes), defaulted("with_stack", &Profiling::with_stack),
        defaulted("ranks", &Profiling::ranks), defaulted("memory_snapshots", &Profiling::memory_snapshots));
  }
};

struct GradientManagerConfig {
  // The dtype in which gradients are summed over microbatches and ranks, unless FsdpConfig names another for sharded
  // parameters. null: float32, or float64 for float64 parameters. bfloat16 saves memory and rounds each sum.
  std::optional<Dtype> grad_dtype = {};
  std::int64_t bucket_size_mb = 32;  // MiB of gradients that one collective sums over ranks

  static constexpr auto fields() {
    using Manager = GradientManagerConfig;
    return record<Manager>(defaulted("grad_dtype", &Manager::grad_dtype),
                           defaulted("bucket_size_mb", &Manager::bucket_size_mb, at_least(1)));
  }
};

struct TimeoutConfig {
  // Seconds that one wait for other ranks may take while the job starts, in its first step, during evaluations, exports
  // and saves that training waits for, and after its last step.
  std::int64_t init_timeout = 10000;
  std::int64_t step_timeout = 100;  // seconds that one wait for other ranks may take in all other steps

  static constexpr auto fields() {
    return record<TimeoutConfig>(defaulted("init_timeout", &TimeoutConfig::init_timeout, at_least(1)),
                                 defaulted("step_timeout", &TimeoutConfig::step_timeout, at_least(1)));
  }
};

// Runs each forward and each backward as a CUDA graph, for steps whose kernels are so short that launches limit their
// speed. A graph serves microbatches of one kind: those whose ForwardInputs have the same names, shapes, dtypes and
// host values, and at whose start the same parameters have gradients. Other microbatches run eagerly and give the same
// numbers. In a model of several stages, all microbatches of a step in their order make up one kind. Needs one device
// per rank, and all mesh degrees except data_parallel_replicate and pipeline_parallel must be 1.
//
// Host code of the task, the model and their hooks runs when a graph is captured but not when it is replayed. It must
// therefore read no device value, and only inputs, shared and state may decide what the device does. The job throws if
// this code waits for the device, uses dropout or asks for the step; it does not notice dependence on other state.
struct CudaGraphConfig {
  std::int64_t num_warm_up_steps = 2;  // steps in which a kind runs eagerly before it is captured
  std::int64_t max_graphs = 4;         // further kinds run eagerly

  static constexpr auto fields() {
    using Graph = CudaGraphConfig;
    return record<Graph>(defaulted("num_warm_up_steps", &Graph::num_warm_up_steps, at_least(1)),
                         defaulted("max_graphs", &Graph::max_graphs, at_least(1)));
  }
};

struct TrainerConfig {
  RunConfig run = {};
  ScheduleConfig schedule = {};
  DataPrefetchConfig data_prefetch = {};
  LoggingConfig logging = {};
  PipeliningConfig pipelining = {};
  ModelStageFactoryConfig model_stage_factory = {};
  DeterminismConfig determinism = {};
  GarbageCollectionConfig gc = {};
  CheckpointingConfig checkpointing = {};
  // The name of the data that the job reads, for a job that changes its data, mixture or view at a resume (annealing).
  // Checkpoints contain it. If a resumed job has another name than its checkpoint, it reads its data from the start,
  // and continues steps, moments and learning-rate schedule. null: the name in the checkpoint.
  std::optional<std::string> data_phase = {};
  std::optional<ExportsConfig> exports = {};  // null: none while the model is trained
  GradientClippingConfig gradient_clipping = {};
  std::optional<AveragedWeightsConfig> ema = {};            // null: no averages of the weights
  std::map<std::string, EvaluationConfig> evaluation = {};  // evaluation sets by name
  std::optional<ProfilingConfig> profiling = {};
  GradientManagerConfig gradient_manager = {};
  TimeoutConfig timeout = {};
  // What each rank's activations may take, within which layers recompute and offload as little as they can; null: as
  // the model is built, such as by model_provider.checkpointing.
  std::optional<MemoryBudgetConfig> memory_budget = {};
  std::optional<CudaGraphConfig> cuda_graph = {};  // null: kernels are launched one by one
  bool detect_non_finite = false;                  // throws in the first module whose output is not finite; slow
  bool refuse_equal_data = true;                   // throws if data-parallel ranks begin with the same samples

  static constexpr auto fields() {
    using Trainer = TrainerConfig;
    return record<Trainer>(
        required("run", &Trainer::run), defaulted("schedule", &Trainer::schedule),
        defaulted("data_prefetch", &Trainer::data_prefetch), required("logging", &Trainer::logging),
        defaulted("pipelining", &Trainer::pipelining), defaulted("model_stage_factory", &Trainer::model_stage_factory),
        required("determinism", &Trainer::determinism), required("gc", &Trainer::gc),
        required("checkpointing", &Trainer::checkpointing), defaulted("data_phase", &Trainer::data_phase),
        defaulted("exports", &Trainer::exports), required("gradient_clipping", &Trainer::gradient_clipping),
        defaulted("ema", &Trainer::ema), defaulted("evaluation", &Trainer::evaluation),
        defaulted("profiling", &Trainer::profiling), defaulted("gradient_manager", &Trainer::gradient_manager),
        defaulted("timeout", &Trainer::timeout), defaulted("memory_budget", &Trainer::memory_budget),
        defaulted("cuda_graph", &Trainer::cuda_graph), defaulted("detect_non_finite", &Trainer::detect_non_finite),
        defaulted("refuse_equal_data", &Trainer::refuse_equal_data));
  }
};

struct InferenceConfig {
  ScheduleConfig schedule = {};
  DataPrefetchConfig data_prefetch = {};
  ModelStageFactoryConfig model_stage_factory = {};
  DeterminismConfig determinism = {};
  GarbageCollectionConfig gc = {};
  CheckpointingConfig checkpointing = {};
  std::optional<ProfilingConfig> profiling = {};
  TimeoutConfig timeout = {};

  static constexpr auto fields() {
    using Inference = InferenceConfig;
    return record<Inference>(defaulted("schedule", &Inference::schedule),
                             defaulted("data_prefetch", &Inference::data_prefetch),
                             defaulted("model_stage_factory", &Inference::model_stage_factory),
                             required("determinism", &Inference::determinism), required("gc", &Inference::gc),
                             required("checkpointing", &Inference::checkpointing),
                             defaulted("profiling", &Inference::profiling), defaulted("timeout", &Inference::timeout));
  }
};

extern template const ValueType& json_type<TrainerConfig>();
extern template const ValueType& json_type<InferenceConfig>();

}  // namespace d9d
