// Reads which rank of a job this process is from the environment variables that torchrun or SLURM's srun set.
//
// Example
//   if (const auto here = rank_environment()) run_as(here->rank);  // else: no launcher started ranks
//
//   torchrun  RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT; any launcher may set these.
//   srun      SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NODEID SLURM_NNODES SLURM_TASKS_PER_NODE, the first host of
//             SLURM_JOB_NODELIST and a port from SLURM_JOB_ID, or MASTER_ADDR and MASTER_PORT if set. Variables of the
//             step (SLURM_STEP_...) take precedence. A job of one task counts as not launched.
//
// If both launchers have set their variables (srun torchrun ...), torchrun's are used.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "d9d/base/environment.h"

namespace d9d {

struct RankEnvironment {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::int64_t local_rank = 0;  // among the ranks of this machine
  std::int64_t local_world_size = 1;
  std::int64_t node = 0;  // index of this machine among num_nodes
  std::int64_t num_nodes = 1;
  std::string master_address = "127.0.0.1";  // address of the machine of rank 0
  std::uint16_t master_port = 0;
  bool launcher_hosts_store = false;              // false: rank 0 does
  std::int64_t attempt = 0;                       // how often the launcher has restarted the job
  std::string variables = "RANK and WORLD_SIZE";  // the variables that were read, for messages
  bool is_started = true;  // false: in a SLURM job of several tasks, but no srun has started this process
};

using ReadVariable = std::function<std::optional<std::string>(const char* name)>;

// None if no launcher set its variables. Throws ConfigError if some are missing, malformed or contradict each other.
[[nodiscard]] std::optional<RankEnvironment> rank_environment(const ReadVariable& read = environment_variable);

// Returns the first host of a list of SLURM: "rack2-n07" for "rack[2-3]-n[07,09-12],login".
[[nodiscard]] std::string first_slurm_host(const std::string& nodes);
// Returns the entry of the machine with index `node` in a list of SLURM such as "4(x2),3", which means 4, 4, 3.
[[nodiscard]] std::int64_t slurm_tasks_of_node(const std::string& tasks_per_node, std::int64_t node);

}  // namespace d9d
