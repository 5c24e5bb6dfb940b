// The command line of d9d_plan.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace d9d::plan {

inline constexpr std::string_view kUsage =
    R"(usage: d9d_plan JOB.json|MODEL.json [key.path=value ...] [options]

Prints what each rank of a job keeps in memory. No device is needed and nothing is allocated: the job's own code builds
the stages, lays them out and runs a step on tensors without values.

  JOB.json              of a pretraining program (examples/*/pretrain); key.path=value change it, as there:
                        model_provider.checkpointing=true trainer.model_stage_factory.master_dtype=float32
  MODEL.json            sizes of a model alone, as d9d/models/*/presets: trained by adamw in bfloat16 unless changed
  --family NAME         of the model, a folder of d9d/models: by default the one in the config.json that training starts
                        from, the folder of MODEL.json, or the first with the keys of the layers
  --mesh KEYS           pipeline_parallel=4,data_parallel_shard=2
  --schedule NAME,KEYS  1f1b,num_stages_per_rank=2,zero_bubble=true
  --optimizer NAME,KEYS stochastic_adamw,lr=1e-4,state_dtype=bfloat16
  --microbatch BxS      sequences x positions of a microbatch; of a JOB what its data says
  --microbatches M      of a step, on a rank; of a JOB what its batch sizes say, of a MODEL twice the pipeline's ranks
  --memory SIZE         of a GPU: 80GiB. Says which ranks do not fit, and what would help
  --ranks N             in place of --mesh: every mesh of N ranks that the job can run on and that fits, by what its
                        largest rank needs

Exit code: 0, 3 where a rank, or every mesh, does not fit in --memory, 1 for an error, 2 for this command line.
)";

struct Options {
  std::filesystem::path file = {};
  std::vector<std::string> overrides = {};  // key.path=value, of the job
  struct Microbatch {
    std::int64_t num_sequences = 1;
    std::int64_t sequence_length = 1;
  };
  std::string family = {};  // empty: not given
  std::optional<Microbatch> microbatch = {};
  std::optional<std::int64_t> num_microbatches = {};
  std::optional<std::int64_t> memory = {};     // bytes
  std::optional<std::int64_t> num_ranks = {};  // of the meshes to list; none: the job's own mesh alone is planned
  bool wants_help = false;
};

// Throws UsageError.
[[nodiscard]] Options parse_options(const std::vector<std::string>& words);

}  // namespace d9d::plan
