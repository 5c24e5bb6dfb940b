#include "d9d/core/launch/rank_environment.h"

#include <charconv>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr std::int64_t kMaxPort = 65535;

std::optional<std::int64_t> parse_integer(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// The variables of one launcher.
class Variables {
 public:
  Variables(const ReadVariable& read, std::string launcher) : read_(read), launcher_(std::move(launcher)) {}

  [[nodiscard]] std::optional<std::string> find(const char* name) const {
    auto value = read_(name);
    return value && value->empty() ? std::nullopt : value;
  }
  [[nodiscard]] std::string text(const char* name) const {
    const auto value = find(name);
    D9D_CHECK(value, ConfigError, "[core::rank_environment] expected ", name, " with the other variables of ",
              launcher_, ", got none. Start the program with ", launcher_, ", or unset them to run all ranks here.");
    return *value;
  }
  [[nodiscard]] std::int64_t integer(const char* name) const { return parse(name, text(name)); }
  [[nodiscard]] std::int64_t integer_or(const char* name, std::int64_t otherwise) const {
    const auto value = find(name);
    return value ? parse(name, *value) : otherwise;
  }

 private:
  static std::int64_t parse(const char* name, const std::string& value) {
    const auto number = parse_integer(value);
    D9D_CHECK(number, ConfigError, "[core::rank_environment] expected ", name, " to be a number from 0 on, got '",
              value, "'. The launcher sets it.");
    return *number;
  }

  const ReadVariable& read_;
  std::string launcher_;
};

void check_below(const char* name, std::int64_t value, const char* limit_name, std::int64_t limit) {
  D9D_CHECK(value < limit, ConfigError, "[core::rank_environment] expected ", name, " below ", limit_name, " = ", limit,
            ", got ", value, ". Set both by one launcher.");
}

std::uint16_t checked_port(std::int64_t port) {
  D9D_CHECK(port >= 1 && port <= kMaxPort, ConfigError,
            "[core::rank_environment] expected MASTER_PORT in [1, 65535], got ", port, ". Choose a free port.");
  return static_cast<std::uint16_t>(port);
}

RankEnvironment from_torchrun(const Variables& variables) {
  RankEnvironment here{.rank = variables.integer("RANK"),
                       .world_size = variables.integer("WORLD_SIZE"),
                       .local_rank = variables.integer("LOCAL_RANK"),
                       .local_world_size = variables.integer("LOCAL_WORLD_SIZE"),
                       .master_address = variables.text("MASTER_ADDR"),
                       .master_port = checked_port(variables.integer("MASTER_PORT"))};
  check_below("RANK", here.rank, "WORLD_SIZE", here.world_size);
  check_below("LOCAL_RANK", here.local_rank, "LOCAL_WORLD_SIZE", here.local_world_size);
  check_below("LOCAL_WORLD_SIZE - 1", here.local_world_size - 1, "WORLD_SIZE", here.world_size);
  here.num_nodes = variables.integer_or("GROUP_WORLD_SIZE", here.world_size / here.local_world_size);
  here.node = variables.integer_or("GROUP_RANK", here.rank / here.local_world_size);
  here.launcher_hosts_store = variables.find("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  here.attempt = variables.integer_or("TORCHELASTIC_RESTART_COUNT", 0);
  return here;
}

// Returns a port below those that systems assign automatically, which differs between jobs and steps that share a
// machine.
std::int64_t slurm_port(std::int64_t job, std::int64_t step) { return 10000 + (job + step * 7919) % 20000; }

RankEnvironment from_slurm(const Variables& variables) {
  RankEnvironment here{.rank = variables.integer("SLURM_PROCID"),
                       .world_size = variables.integer_or("SLURM_STEP_NUM_TASKS", variables.integer("SLURM_NTASKS")),
                       .local_rank = variables.integer("SLURM_LOCALID"),
                       .node = variables.integer("SLURM_NODEID"),
                       .num_nodes = variables.integer_or("SLURM_STEP_NUM_NODES", variables.integer("SLURM_NNODES")),
                       .attempt = variables.integer_or("SLURM_RESTART_COUNT", 0),
                       .variables = "SLURM_PROCID and SLURM_NTASKS",
                       .is_started = variables.find("SLURM_STEP_ID") || variables.find("SLURM_STEPID")};
  const auto tasks = variables.find("SLURM_STEP_TASKS_PER_NODE");
  here.local_world_size = slurm_tasks_of_node(tasks ? *tasks : variables.text("SLURM_TASKS_PER_NODE"), here.node);
  const auto address = variables.find("MASTER_ADDR");
  const auto nodes = variables.find("SLURM_STEP_NODELIST");
  here.master_address = address ? *address : first_slurm_host(nodes ? *nodes : variables.text("SLURM_JOB_NODELIST"));
  const auto port = variables.find("MASTER_PORT");
  here.master_port =
      checked_port(port ? variables.integer("MASTER_PORT")
                        : slurm_port(variables.integer("SLURM_JOB_ID"), variables.integer_or("SLURM_STEP_ID", 0)));
  check_below("SLURM_PROCID", here.rank, "SLURM_NTASKS", here.world_size);
  check_below("SLURM_NODEID", here.node, "SLURM_NNODES", here.num_nodes);
  check_below("SLURM_LOCALID", here.local_rank, "the tasks of this node", here.local_world_size);
  return here;
}

}  // namespace

std::string first_slurm_host(const std::string& nodes) {
  std::string host;
  for (std::size_t i = 0; i < nodes.size() && nodes[i] != ','; ++i) {
    if (nodes[i] != '[') {
      host += nodes[i];
      continue;
    }
    const std::size_t first_end = nodes.find_first_of(",-]", i);
    const std::size_t close = nodes.find(']', i);
    D9D_CHECK(close != std::string::npos, ConfigError,
              "[core::rank_environment] expected SLURM_JOB_NODELIST as 'node[01-04]', got '", nodes,
              "'. Set MASTER_ADDR to the machine of rank 0.");
    host += nodes.substr(i + 1, first_end - i - 1);
    i = close;
  }
  return host;
}

std::int64_t slurm_tasks_of_node(const std::string& tasks_per_node, std::int64_t node) {
  const auto check = [&](bool condition) {
    D9D_CHECK(condition, ConfigError, "[core::rank_environment] expected SLURM_TASKS_PER_NODE as '4(x2),3' with node ",
              node, ", got '", tasks_per_node, "'. srun sets it.");
  };
  std::int64_t first_node = 0;
  for (std::size_t begin = 0; begin < tasks_per_node.size();) {
    const std::size_t end = std::min(tasks_per_node.find(',', begin), tasks_per_node.size());
    const std::string entry = tasks_per_node.substr(begin, end - begin);
    const std::size_t times = std::min(entry.find("(x"), entry.size());
    const auto tasks = parse_integer(entry.substr(0, times));
    const auto num_nodes = times == entry.size() ? std::optional<std::int64_t>(1)
                                                 : parse_integer(entry.substr(times + 2, entry.size() - times - 3));
    check(tasks && num_nodes);
    first_node += *num_nodes;
    if (node < first_node) return *tasks;
    begin = end + 1;
  }
  check(false);
  return 0;
}

std::optional<RankEnvironment> rank_environment(const ReadVariable& read) {
  const Variables torchrun(read, "torchrun");
  if (torchrun.find("RANK") || torchrun.find("WORLD_SIZE") || torchrun.find("LOCAL_RANK"))
    return from_torchrun(torchrun);
  const Variables slurm(read, "srun");
  // More than one task: the shell of an allocation has these variables too, with one task.
  if (slurm.find("SLURM_PROCID") && slurm.integer_or("SLURM_STEP_NUM_TASKS", slurm.integer_or("SLURM_NTASKS", 1)) > 1) {
    return from_slurm(slurm);
  }
  return std::nullopt;
}

}  // namespace d9d
