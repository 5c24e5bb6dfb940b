#include "tests/loop/config/job_config.h"

#include "d9d/base/config/record_json.h"

namespace d9d {

JobConfig parse_job(const Json& json) { return parse_record<JobConfig>(json, {.source = "job.json"}); }

Json minimal_trainer() {
  return Json::parse(R"({
    "run": {"name": "a"},
    "logging": {"period_steps": 5, "tracker": {"provider": "null"}},
    "determinism": {"base_seed": 1337},
    "gc": {"period_steps": 10},
    "checkpointing": {"save_dir": "checkpoints", "period_steps": 1000},
    "gradient_clipping": {"max_norm": null}
  })");
}

Json job_0_24() {
  return Json::parse(R"({
    "mesh": {"pipeline_parallel": 4, "data_parallel_replicate": 2, "expert_parallel": 2},
    "data": {"dataset": "dataset", "split": "train", "text_column": "text", "use_samples": 100000, "shuffle_seed": 42,
             "tokenizer": "tokenizer.json", "num_proc": 16, "presort_buffer_size": 1000,
             "global_batch_size": 128, "microbatch_size": 8, "num_workers": 4, "pin_memory": true,
             "persistent_workers": false},
    "model_provider": {
      "model": {
        "layer": {"hidden_size": 768, "intermediate_size": 576, "num_experts": 128, "experts_top_k": 8,
                  "num_attention_heads": 16, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "head_dim": 128},
        "num_hidden_layers": 16, "rope_base": 1000000.0, "max_position_ids": 128000,
        "split_vocab_size": {"regular": 151643, "special": 26}, "split_vocab_order": ["regular", "special"],
        "pipeline_num_virtual_layers_post": 1},
      "checkpointing": false},
    "trainer": {
      "run": {"name": "qwen3-moe-pretrain", "hparams": {"write": "something"}},
      "schedule": {"total_steps": 1000},
      "logging": {"period_steps": 5, "tracker": {"provider": "tensorboard", "log_dir": "runs/a"}},
      "pipelining": {"schedule": {"schedule": "looped_bfs", "num_stages_per_rank": 2}},
      "determinism": {"base_seed": 1337},
      "gc": {"period_steps": 10},
      "checkpointing": {"save_dir": "checkpoints", "period_steps": 1000, "num_to_keep": 3},
      "gradient_clipping": {"max_norm": 5.0},
      "gradient_manager": {"grad_dtype": "float32"}},
    "optimizer": {"name": "stochastic_adamw", "lr": 2.5e-4, "state_dtype": "bfloat16"},
    "lr_scheduler": {"name": "piecewise", "scheduler": {"initial_multiplier": 0, "phases": [
      {"mode": "percentage", "percentage": 0.1, "target_multiplier": 1.0, "curve": {"type": "linear"}},
      {"mode": "rest", "target_multiplier": 0.001, "curve": {"type": "cosine"}}]}},
    "export_to": "export"
  })");
}

Json file_of_0_16(const std::string& name) {
  return read_json_file(std::filesystem::path(D9D_SOURCE_DIR) / "tests/loop/config/files_of_0_16" / name);
}

Json job_0_16() { return file_of_0_16("pretrain.json"); }

}  // namespace d9d
