#include "tools/plan/job.h"

#include <algorithm>
#include <iostream>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "d9d/base/check.h"
#include "d9d/base/config/override.h"
#include "d9d/base/config/record_json.h"
#include "d9d/data/order/num_microbatches.h"
#include "d9d/loop/config/aliases.h"
#include "d9d/loop/language_model/causal_lm_provider.h"
#include "d9d/loop/language_model/pretrain_config.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/models/families.h"

namespace d9d::plan {
namespace {

// A job but for its model, for plans of a model alone. Its data, names and folders are not used.
Json job_of_model(Json model) {
  Json job = Json::parse(R"({
    "mesh": {},
    "data": {"kind": "text", "paths": [], "sequence_length": 4096, "global_batch_size": 1, "microbatch_size": 1},
    "model_provider": {"checkpointing": false, "dtype": "bfloat16"},
    "trainer": {
      "run": {"name": "plan"}, "logging": {"period_steps": "disable", "tracker": {"provider": "null"}},
      "determinism": {"base_seed": 1}, "gc": {"period_steps": "disable"},
      "checkpointing": {"save_dir": "plan", "period_steps": "disable"}, "gradient_clipping": {"max_norm": 1.0}
    },
    "optimizer": {"name": "adamw", "lr": 1e-4},
    "lr_scheduler": {"initial_multiplier": 1.0, "phases": []},
    "export_to": "plan"
  })");
  job["model_provider"]["model"] = std::move(model);
  return job;
}

std::string source_of(const Options& options) {
  return options.file.string() + (options.overrides.empty() ? "" : " with overrides");
}

// A sample has this many positions, unless its documents are shorter.
struct SequenceLength {
  template <class Source>
  std::optional<std::int64_t> operator()(const DataOf<Source>& data) const {
    return data.source.sequence.sequence_length;
  }
  std::optional<std::int64_t> operator()(const MixtureDataConfig& data) const {
    std::int64_t longest = 1;
    for (const MixedSourceConfig& each : data.sources) {
      longest = std::max(longest,
                         std::visit([](const auto& source) { return source.sequence.sequence_length; }, each.source));
    }
    return longest;
  }
  std::optional<std::int64_t> operator()(const DatasetDataConfig& /*data*/) const { return std::nullopt; }
};

MemoryRequest request_of(const DeviceMeshParameters& mesh, const TrainerConfig& trainer,
                         const OptimizerConfig& optimizer, const DataConfig& data, const Options& options,
                         bool is_model) {
  MemoryRequest request{.mesh = mesh, .trainer = trainer, .optimizer = optimizer};
  const auto length = std::visit(SequenceLength{}, data);
  D9D_CHECK(options.microbatch || length, UsageError, "[plan] expected --microbatch BxS with data whose samples have ",
            "any length, got none. See --help.");
  const AutoDataConfig& loader = loader_config(data);
  request.num_sequences = options.microbatch ? options.microbatch->num_sequences : loader.microbatch_size;
  request.sequence_length = options.microbatch ? options.microbatch->sequence_length : *length;
  if (options.num_microbatches) {
    request.num_microbatches = *options.num_microbatches;
  } else if (is_model) {
    request.num_microbatches = 2 * mesh.pipeline_parallel;
  } else {
    request.num_microbatches = num_microbatches_for_global_batch(
        {.data_parallel_size = mesh.data_parallel_replicate * mesh.data_parallel_shard,
         .global_batch_size = loader.global_batch_size,
         .microbatch_size = request.num_sequences});
  }
  return request;
}

template <class Parameters>
PlannedJob plan_family(const ModelFamily<Parameters>& family, const Job& job, const Options& options) {
  const auto config = parse_record<PretrainConfig<Parameters>>(job.json, {.source = source_of(options)});
  const Parameters sizes =
      causal_lm_sizes(family, config.model_provider, config.trainer.model_stage_factory.source_checkpoint);
  CausalLMProvider model(family, config.model_provider, sizes);
  PlannedJob planned{
      .model = cat(family.name, ", ", sizes.num_hidden_layers, " layers, ", enum_name(config.model_provider.dtype),
                   config.model_provider.checkpointing.recomputes() ? ", checkpointed" : ""),
      .request = request_of(config.mesh, config.trainer, config.optimizer, config.data, options, job.is_of_model),
      .ranks = {}};
  D9D_CHECK(planned.request.sequence_length <= sizes.max_position_ids, ConfigError,
            ConfigPath{.keys = "model_provider.model.max_position_ids", .source = source_of(options)},
            "expected at least the ", planned.request.sequence_length, " positions of a sequence, got ",
            sizes.max_position_ids, ". Raise it, or plan shorter sequences.");
  planned.ranks = plan_memory(planned.request, model);
  return planned;
}

std::string family_names() {
  std::string names;
  for_each_family([&](const auto& family) { names += cat(names.empty() ? "" : ", ", family.name); });
  return names;
}

// The family in the config.json of the folder that training starts from; none if there is no such folder or file.
std::optional<std::string> family_of_checkpoint(const Json& job) {
  const Json::json_pointer key("/trainer/model_stage_factory/source_checkpoint");
  if (!job.contains(key) || !job[key].is_string()) return std::nullopt;
  const std::filesystem::path folder = job[key].get<std::string>();
  if (!std::filesystem::exists(folder / "config.json")) return std::nullopt;
  std::string name;
  visit_family_of(HuggingFaceDirectory(folder).read_config(), [&](const auto& family) { name = family.name; });
  return name;
}

// The family whose name a folder of the path has, the nearest one: presets are in <family>/presets.
std::optional<std::string> family_of_folder(const std::filesystem::path& file) {
  std::optional<std::string> name;
  for (const std::filesystem::path& folder : std::filesystem::absolute(file).parent_path()) {
    for_each_family([&](const auto& family) {
      if (folder == family.name) name = family.name;
    });
  }
  return name;
}

// The family whose layers have the most of the keys that the job has, and the fewest others.
std::string family_of_keys(const Json& job) {
  const Json::json_pointer key("/model_provider/model/layer");
  const Json layer = job.contains(key) && job[key].is_object() ? job[key] : Json::object();
  std::string best;
  std::pair<std::size_t, std::size_t> least;  // keys that the family lacks, and all of its keys
  for_each_family([&]<class Parameters>(const ModelFamily<Parameters>& family) {
    const std::vector<std::string_view>& keys = record_type<decltype(Parameters::layer)>().keys();
    std::size_t num_unknown = 0;
    for (const auto& [key_of_job, value] : layer.items()) {
      if (std::ranges::find(keys, key_of_job) == keys.end()) ++num_unknown;
    }
    const std::pair misfit(num_unknown, keys.size());
    if (!best.empty() && misfit >= least) return;
    best = family.name;
    least = misfit;
  });
  return best;
}

}  // namespace

Job read_job(const Options& options) {
  Json file = read_json_file(options.file);
  const ConfigPath path{.source = options.file.string()};
  D9D_CHECK(file.is_object(), ConfigError, path, "expected the JSON of a job or of a model, got ", json_excerpt(file),
            ". See d9d_plan --help.");
  const bool is_model = file.contains("layer") && file.contains("num_hidden_layers");
  D9D_CHECK(is_model || (file.contains("model_provider") && file.contains("trainer") && file.contains("data")),
            ConfigError, path,
            "expected a pretraining job with \"model_provider\", \"data\" and \"trainer\", or the sizes of a model "
            "with \"layer\" and ",
            "\"num_hidden_layers\", got neither. Other programs' models are planned by plan_memory() ",
            "(d9d/loop/measure/memory_plan.h).");
  Json job = is_model ? job_of_model(std::move(file)) : std::move(file);
  for (const std::string& each : options.overrides) apply_override(job, each);
  for (const std::string& note : apply_0_16_aliases(job, {.source = source_of(options)})) {
    std::clog << ConfigPath{.source = source_of(options)} << note << '\n';
  }
  std::string name = options.family;
  if (name.empty()) {
    const auto said = is_model ? family_of_folder(options.file) : family_of_checkpoint(job);
    name = said ? *said : family_of_keys(job);
  }
  Job result{.json = std::move(job), .is_of_model = is_model};
  for_each_family([&](const auto& family) {
    if (name != family.name) return;
    result.family = name;
    result.has_experts = family.has_experts;
  });
  D9D_CHECK(!result.family.empty(), UsageError, "[plan] expected --family with one of ", family_names(), ", got '",
            name, "'. See --help.");
  return result;
}

PlannedJob plan_job(const Job& job, const Options& options) {
  std::optional<PlannedJob> planned;
  for_each_family([&](const auto& family) {
    if (job.family == family.name) planned = plan_family(family, job, options);
  });
  return *std::move(planned);
}

}  // namespace d9d::plan
