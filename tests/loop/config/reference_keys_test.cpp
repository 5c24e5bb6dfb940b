// Every key of the configuration records of d9d 0.16 and 0.24, as a job file has them: it is read, under which key of
// today, or refused with a message that names it.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/config/record_json.h"
#include "d9d/loop/config/aliases.h"
#include "d9d/loop/config/unsupported.h"
#include "d9d/loop/language_model/pretrain_config.h"

#include "tests/loop/config/job_config.h"

namespace d9d::reference_keys_test {
namespace {

using ::testing::HasSubstr;

// A job that infers with the model of the example of 0.16.
struct InferenceJob {
  LaunchConfig launch = {};
  DeviceMeshParameters mesh = {};
  DataConfig data = {};
  CausalLMProviderConfig<Qwen3MoEParameters> model_provider = {};
  InferenceConfig inference = {};
  static constexpr auto fields() {
    using Job = InferenceJob;
    return record<Job>(defaulted("launch", &Job::launch), required("mesh", &Job::mesh), required("data", &Job::data),
                       required("model_provider", &Job::model_provider), required("inference", &Job::inference));
  }
};
using TrainingJob = PretrainConfig<Qwen3MoEParameters>;

struct Key {
  const char* path;
  const char* value;              // another one than in the files
  const char* lands_at = "";      // the key of today; "": the same
  const char* becomes = "";       // its value there; "": the same
  const char* refused_with = "";  // what the error of the job contains; "": it runs
};

constexpr const char* kPhases = R"([
    {"mode": "steps", "steps": 10, "target_multiplier": 0.5, "curve": {"type": "exponential"}},
    {"mode": "percentage", "percentage": 0.25, "target_multiplier": 0.75, "curve": {"type": "poly", "power": 3.0}},
    {"mode": "rest", "target_multiplier": 0.0, "curve": {"type": "linear"}}])";

// Sections that trainer and inference share; the paths are those below them.
const std::vector<Key> kOfEachJob = {
    {"batching.global_batch_size", "64", "data.global_batch_size"},
    {"batching.microbatch_size", "4", "data.microbatch_size"},
    {"data_loading.num_workers", "2", "data.num_workers"},
    {"data_loading.pin_memory", "false", "data.pin_memory"},
    {"data_loading.persistent_workers", "true", "data.persistent_workers"},
    {"schedule.total_steps", "7"},
    {"data_prefetch.prefetch_factor", "3"},
    {"model_stage_factory.source_checkpoint", R"("weights")"},
    {"model_stage_factory.checkpoint_only_trainable_parameters", "true"},
    {"determinism.base_seed", "5"},
    {"gc.period_steps", R"("disable")"},
    {"checkpointing.save_dir", R"("elsewhere")"},
    {"checkpointing.period_steps", R"("last_step")"},
    {"checkpointing.num_to_keep", "null"},
    {"profiling", "null"},
    {"profiling.enabled", "false", "profiling", "null"},
    {"profiling.traces_dir", R"("elsewhere")"},
    {"profiling.period_steps", "20"},
    {"profiling.warmup_steps", "4"},
    {"profiling.active_steps", "2"},
    {"profiling.record_shapes", "false"},
    {"profiling.with_stack", "false"},
    {"timeout.init_timeout", "50"},
    {"timeout.step_timeout", "60"},
};

const std::vector<Key> kOfTraining = {
    {"mesh.pipeline_parallel", "2"},
    {"mesh.data_parallel_replicate", "4"},
    {"mesh.data_parallel_shard", "2"},
    {"mesh.context_parallel_replicate", "2"},
    {"mesh.context_parallel_shard", "2"},
    {"mesh.tensor_parallel", "2"},
    {"mesh.expert_parallel", "1"},
    {"data.dataset", R"("elsewhere")"},
    {"data.split", R"("test")"},
    {"data.text_column", R"("body")"},
    {"data.use_samples", "10"},
    {"data.shuffle_seed", "1"},
    {"data.tokenizer", R"("elsewhere")"},
    {"data.num_proc", "2"},
    {"data.presort_buffer_size", "256"},
    {"data.shard_indexing_mode", R"("chunked")"},
    {"data.shuffle", "true"},
    {"data.drop_last", "false"},
    {"data.prefetch_factor", "5"},
    {"data.timeout", "1.5"},
    {"model_provider.model.model.layer.hidden_size", "64", "model_provider.model.layer.hidden_size"},
    {"model_provider.model.model.layer.intermediate_size", "32", "model_provider.model.layer.intermediate_size"},
    {"model_provider.model.model.layer.num_experts", "16", "model_provider.model.layer.num_experts"},
    {"model_provider.model.model.layer.experts_top_k", "2", "model_provider.model.layer.experts_top_k"},
    {"model_provider.model.model.layer.num_attention_heads", "8", "model_provider.model.layer.num_attention_heads"},
    {"model_provider.model.model.layer.num_key_value_heads", "2", "model_provider.model.layer.num_key_value_heads"},
    {"model_provider.model.model.layer.rms_norm_eps", "1e-5", "model_provider.model.layer.rms_norm_eps"},
    {"model_provider.model.model.layer.head_dim", "8", "model_provider.model.layer.head_dim"},
    {"model_provider.model.model.num_hidden_layers", "8", "model_provider.model.num_hidden_layers"},
    {"model_provider.model.model.rope_base", "500.0", "model_provider.model.rope_base"},
    {"model_provider.model.model.max_position_ids", "128", "model_provider.model.max_position_ids"},
    {"model_provider.model.model.split_vocab_size", R"({"regular": 256, "special": 1})",
     "model_provider.model.split_vocab_size"},
    {"model_provider.model.model.split_vocab_order", R"(["special", "regular"])",
     "model_provider.model.split_vocab_order"},
    {"model_provider.model.model.pipeline_num_virtual_layers_pre", "1",
     "model_provider.model.pipeline_num_virtual_layers_pre"},
    {"model_provider.model.model.pipeline_num_virtual_layers_post", "0",
     "model_provider.model.pipeline_num_virtual_layers_post"},
    {"model_provider.checkpointing", "true"},
    {"trainer.run.name", R"("another")"},
    {"trainer.run.description", "null"},
    {"trainer.run.hparams", R"({"a": [1]})"},
    {"trainer.logging.period_steps", "1"},
    {"trainer.logging.max_pending_steps", "4"},
    {"trainer.logging.tracker", R"({"provider": "null"})"},
    {"trainer.logging.tracker", R"({"provider": "log"})"},
    {"trainer.logging.tracker", R"({"provider": "tensorboard", "log_dir": "a"})"},
    {.path = "trainer.logging.tracker",
     .value = R"({"provider": "aim", "repo": "a", "log_system_params": false, "capture_terminal_logs": false,
                  "system_tracking_interval": 5})"},
    {.path = "trainer.logging.tracker",
     .value = R"({"provider": "wandb", "project": "a", "entity": "b", "group": "c", "tags": ["d"], "mode": "offline",
                  "dir": "e", "capture_terminal_logs": true})"},
    {.path = "trainer.logging.tracker", .value = R"({"provider": "mlflow", "experiment": "a", "tracking_uri": "b"})"},
    {"trainer.pipelining.schedule", R"({"schedule": "gpipe"})"},
    {"trainer.pipelining.schedule", R"({"schedule": "looped_bfs", "num_stages_per_rank": 4})"},
    {"trainer.pipelining.schedule", R"({"schedule": "1f1b", "num_stages_per_rank": 3, "zero_bubble": true})"},
    {"trainer.pipelining.schedule", R"({"schedule": "zero_bubble_v"})"},
    {"trainer.pipelining.schedule", R"({"schedule": "dual_pipe_v"})"},
    {.path = "trainer.pipelining.schedule",
     .value = R"({"schedule": "inference"})",
     .refused_with = R"(trainer.pipelining.schedule = {"schedule":"inference"})"},
    {"trainer.gradient_clipping.max_norm", "null"},
    {"trainer.gradient_clipping.log_total_steps", R"("last_step")"},
    {"trainer.gradient_manager.grad_dtype", R"("bfloat16")"},
    {.path = "trainer.gradient_manager.grad_dtype",
     .value = R"("float16")",
     .refused_with = R"(trainer.gradient_manager.grad_dtype = "float16")"},
    {"trainer.gradient_manager.bucket_size_mb", "8"},
    {"optimizer", R"({"name": "stochastic_adamw", "lr": 1e-3, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.1,
                      "state_dtype": "float32"})"},
    {"optimizer", R"({"name": "adamw", "lr": 1e-3, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.1,
                      "amsgrad": true, "maximize": true})"},
    {"optimizer", R"({"name": "adam", "lr": 1e-3, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.1,
                      "amsgrad": true, "maximize": true, "decoupled_weight_decay": true})"},
    {"optimizer", R"({"name": "sgd", "lr": 1e-3, "momentum": 0.5, "dampening": 0.0, "weight_decay": 0.1,
                      "nesterov": true, "maximize": true})"},
    {"lr_scheduler.scheduler.initial_multiplier", "0.5"},
    {"lr_scheduler.scheduler.phases", kPhases},
    {"export_to", R"("elsewhere")"},
};

// "a.b" as "/a/b"
Json::json_pointer pointer(std::string path) {
  std::replace(path.begin(), path.end(), '.', '/');
  return Json::json_pointer("/" + path);
}

// A file of 0.16 that runs, with the section that may be off on.
Json file_that_runs(const std::string& name, const std::string& section) {
  Json file = file_of_0_16(name);
  file[section]["profiling"]["enabled"] = true;
  if (section == "trainer")
    file["trainer"]["logging"]["tracker"] = {{"provider", "multi"}, {"trackers", Json::array()}};
  return file;
}

// The keys of today that a file means.
template <class Job>
Json read(Json file) {
  std::ignore = apply_0_16_aliases(file, {});
  return write_record(parse_record<Job>(file));
}

void refuse(const TrainingJob& job) { refuse_unsupported(job.trainer); }
void refuse(const InferenceJob&) {}

template <class Job>
void check(const Json& file, const std::string& path, const Key& key, const std::string& lands_at) {
  SCOPED_TRACE(path + " = " + key.value);
  Json changed = file;
  changed[pointer(path)] = Json::parse(key.value);
  const Json expected = Json::parse(*key.becomes == '\0' ? key.value : key.becomes);
  const Json before = read<Job>(file).at(pointer(lands_at));
  const Json after = read<Job>(changed).at(pointer(lands_at));
  Json with_its_keys = expected.is_object() && after.is_object() ? after : expected;  // beside keys that are ours
  if (expected.is_object()) with_its_keys.merge_patch(expected);
  EXPECT_EQ(after, with_its_keys);
  EXPECT_NE(after, before) << "the file has this value";
  const std::string error = config_error_of([&] { refuse(parse_record<Job>(read<Job>(changed))); });
  EXPECT_THAT(error, HasSubstr(*key.refused_with == '\0' ? "accepted" : key.refused_with));
}

TEST(ReferenceKeys, Of_training_are_read_or_refused_by_name) {
  const Json file = file_that_runs("pretrain.json", "trainer");
  for (const Key& key : kOfTraining) check<TrainingJob>(file, key.path, key, *key.lands_at ? key.lands_at : key.path);
}

TEST(ReferenceKeys, Of_both_jobs_are_read_in_the_section_of_each) {
  const auto check_section = [&]<class Job>(const Json& file, const std::string& section) {
    for (const Key& key : kOfEachJob) {
      const std::string lands_at = *key.lands_at ? key.lands_at : key.path;
      check<Job>(file, section + "." + key.path, key,
                 lands_at.starts_with("data.") ? lands_at : section + "." + lands_at);
    }
  };
  check_section.operator()<TrainingJob>(file_that_runs("pretrain.json", "trainer"), "trainer");
  check_section.operator()<InferenceJob>(file_that_runs("calculate_perplexity.json", "inference"), "inference");
}

TEST(ReferenceKeys, Are_all_those_of_the_files_of_0_16) {
  const auto has_row = [](const std::string& path) {
    const auto begins = [&](const std::string& section) {
      return [&, section](const Key& key) { return path.starts_with(section + key.path); };
    };
    const auto of_section = [&](const std::string& section) {
      return std::any_of(kOfEachJob.begin(), kOfEachJob.end(), begins(section));
    };
    return std::any_of(kOfTraining.begin(), kOfTraining.end(), begins("")) || of_section("trainer.") ||
           of_section("inference.");
  };
  for (const char* name : {"pretrain.json", "calculate_perplexity.json"}) {
    const Json values = file_of_0_16(name).flatten();  // by "/trainer/run/name"
    for (const auto& [path, value] : values.items()) {
      std::string key = path.substr(1);
      std::replace(key.begin(), key.end(), '/', '.');
      if (key == "lr_scheduler.name") continue;  // has one value
      EXPECT_TRUE(has_row(key)) << key;
    }
  }
}

TEST(FilesOf0_16, Are_read_by_the_programs_as_they_are) {
  const Json job = read<TrainingJob>(file_of_0_16("pretrain.json"));
  EXPECT_EQ(job["data"]["global_batch_size"], 128);
  EXPECT_EQ(job["trainer"]["profiling"], nullptr);
  EXPECT_EQ(job["model_provider"]["model"]["rope_base"], 1000000);
  const Json inference = read<InferenceJob>(file_of_0_16("calculate_perplexity.json"));
  EXPECT_EQ(inference["data"]["global_batch_size"], 32);
  EXPECT_EQ(inference["inference"]["checkpointing"]["save_dir"], "../../example_data/checkpoint/inference_job");
  EXPECT_EQ(inference["model_provider"], job["model_provider"]);
}

TEST(FilesOf0_16, Are_refused_for_nothing) {
  EXPECT_NO_THROW(refuse(parse_record<TrainingJob>(read<TrainingJob>(file_of_0_16("pretrain.json")))));
}

}  // namespace
}  // namespace d9d::reference_keys_test
