#include "d9d/core/launch/launch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "d9d/base/check.h"
#include "d9d/base/config/config_path.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/communicator/peer_failed_error.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/core/device/cuda_runtime.h"
#include "d9d/core/device/start_cudnn.h"
#include "d9d/core/device/torch_version.h"
#include "d9d/core/error/error_place.h"
#include "d9d/core/launch/child_processes.h"
#include "d9d/core/launch/library_environment.h"
#include "d9d/core/launch/open_files.h"
#include "d9d/core/launch/rendezvous.h"
#include "d9d/core/launch/thread_ranks.h"
#include "d9d/core/launch/waiting_threads.h"

namespace d9d {
namespace {

bool chooses_cuda(DeviceChoice choice) {
  if (choice == DeviceChoice::kCpu) return false;
  const int num_devices = num_cuda_devices();
  D9D_CHECK(num_devices > 0 || choice == DeviceChoice::kAuto, ConfigError,
            "[core::launch] expected a CUDA device for launch.device = cuda, got none. Use launch.device=cpu.");
  return num_devices > 0;
}

c10::Device device_of(const LaunchConfig& config, std::int64_t local_rank) {
  if (!chooses_cuda(config.device)) return c10::kCPU;
  const std::int64_t gpu = local_rank / config.ranks_per_gpu;
  D9D_CHECK(gpu < num_cuda_devices(), ConfigError, "[core::launch] expected a GPU for each ",
            config.ranks_per_gpu == 1 ? "rank" : cat(config.ranks_per_gpu, " ranks"), " of this machine, got ",
            num_cuda_devices(), " for rank ", local_rank,
            " of it. Start fewer ranks here, use launch.device=cpu, or, to see whether a layout works, let more ranks "
            "share a GPU with launch.ranks_per_gpu.");
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(gpu)};
}

void use_device(c10::Device device) {
  if (!device.is_cuda()) return;
  load_cuda();
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
}

// With more threads than this, threads wait for each other at every operator; with many thousands there is no progress
// at all.
void check_threads(const LaunchConfig& config) {
  const std::int64_t most = 4 * std::max(16U, std::thread::hardware_concurrency());
  D9D_CHECK(config.num_threads.value_or(1) <= most, ConfigError,
            "[core::launch] expected launch.num_threads of at most ", most, " on this machine, got ",
            *config.num_threads, ". Leave it null for all cores, divided among the ranks.");
}

void set_threads(const LaunchConfig& config, std::int64_t num_local_ranks) {
  const auto share = std::max<std::int64_t>(1, at::get_num_threads() / num_local_ranks);
  at::set_num_threads(static_cast<int>(config.num_threads.value_or(share)));
}

void set_deterministic() {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setSDPUseCuDNN(false);  // cuDNN's backward of attention sums in no fixed order
}

// Returns "mesh pipeline_parallel=2 tensor_parallel=4 ...", which must be equal on all ranks.
std::string describe(const DeviceMeshParameters& mesh) {
  std::string text = "mesh";
  for_each_field<DeviceMeshParameters>(
      [&](const auto& field) { text += cat(" ", field.name, "=", mesh.*field.member); });
  return text;
}

using Program = std::function<void(DistContext&)>;

// After a failed communication, an error of the program may result from the invalid values that it left. The failure of
// the communication is therefore reported first.
void run_program(const Program& program, DistContext& context) {
  try {
    program(context);
  } catch (const CommunicationError&) {
    throw;
  } catch (const std::exception&) {
    context.world()->throw_if_failed();
    throw;
  }
}

// Throws ConfigError unless the launcher's ranks fit the mesh. Called before ranks wait for each other.
void check_ranks(const RankEnvironment& here, const DeviceMeshParameters& mesh) {
  D9D_CHECK(
      here.world_size == mesh.world_size(), ConfigError, "[core::launch] expected a mesh of the ", here.world_size,
      " ranks that ", here.variables, " of the environment name, got ", mesh.world_size(), " in ", describe(mesh), ". ",
      here.is_started
          ? "Change mesh, start as many ranks, or unset the variables if no launcher has set them for this program."
          : "No srun has started this process, as in a batch script: start the program with srun and change mesh, "
            "or unset SLURM_PROCID to run all ranks here.");
}

// Throws if a process that is a rank calls launch() twice, since its second launch would meet the ranks of the first.
void refuse_second_launch() {
  static std::atomic<bool> has_launched = false;  // lint: allow(mutable-global): of the process, which is one rank
  D9D_CHECK(
      !has_launched.exchange(true), StateError,
      "[core::launch] expected one launch in a program whose ranks are processes, got a second. Do both parts in ",
      "one launch, in two programs, or on CPUs with launch.ranks=threads.");
}

// How the program has ended on a rank of this process.
struct ProgramEnd {
  std::optional<std::string> failure;  // DistContext::failure_at_end()
  int stop_signal = 0;                 // DistContext::stop_signal()
};
ProgramEnd end_of(const DistContext& context) {
  return {.failure = context.failure_at_end(), .stop_signal = context.stop_signal()};
}

// Returns the exit code. Throws IoError for a failure.
int end_with(const ProgramEnd& end) {
  if (end.failure) throw IoError(*end.failure);
  return end.stop_signal == 0 ? 0 : 128 + end.stop_signal;
}

// Watches waiting threads if this library, and not the user, chose how they wait; otherwise null.
std::unique_ptr<const WaitingThreads> watch_waiting_threads(const LaunchConfig& config, std::int64_t local_rank,
                                                            std::int64_t threads_per_rank) {
  if (!has_chosen_spins() || threads_per_rank <= 1) return nullptr;
  const LogLevel level = local_rank == 0 ? config.log_level : LogLevel::kError;
  return std::make_unique<const WaitingThreads>(Logger({.min_level = level}));
}

int run_as_rank(const RankEnvironment& here, const LaunchConfig& config, const DeviceMeshParameters& mesh,
                const Program& program, std::chrono::seconds init_timeout) {
  set_threads(config, here.local_world_size);
  const c10::Device device = device_of(config, here.local_rank);
  if (device.is_cuda() && config.ranks_per_gpu > 1) let_ranks_share_gpus(here.rank);
  const auto waiting =
      device.is_cpu() ? watch_waiting_threads(config, here.local_rank, at::get_num_threads()) : nullptr;
  // Not started if deterministic, because cuDNN's sums vary.
  const std::jthread cudnn = config.deterministic ? std::jthread() : start_cudnn(device);
  use_device(device);
  check_torch_version();
  const RendezvousOptions meeting{.device = device,
                                  .job = describe(mesh),
                                  .timeout = init_timeout,
                                  .log = Logger({.qualifier = cat("rank ", here.rank), .min_level = config.log_level})};
  const auto world =
      here.world_size == 1 ? one_rank_world(device) : std::make_shared<World>(connect_ranks(here, meeting));
  ProgramEnd end;
  try {
    DistContext context({.mesh = mesh,
                         .world = world,
                         .local_rank = here.local_rank,
                         .node_rank = here.node,
                         .num_nodes = here.num_nodes,
                         .master_address = here.master_address,
                         .log_level = config.log_level});
    run_program(program, context);
    end = end_of(context);
    // The first rank that ends with another code than 0 ends the others.
    if (end.failure || end.stop_signal != 0) context.wait_world();
    world->leave();
  } catch (const PeerFailedError&) {
    throw;
  } catch (const std::exception& error) {
    world->abort(cat("rank ", here.rank, " failed: ", error_line(error)));
    throw;
  } catch (...) {
    world->abort(cat("rank ", here.rank, " failed: ", kUnknownException));
    throw;
  }
  return end_with(end);
}

int run_as_threads(const LaunchConfig& config, const DeviceMeshParameters& mesh, const Program& program) {
  check_torch_version();
  const std::int64_t share = at::get_num_threads() / mesh.world_size();
  const auto waiting = watch_waiting_threads(config, /*local_rank=*/0, config.num_threads.value_or(share));
  ProgramEnd end;  // of rank 0
  run_thread_ranks(mesh.world_size(), [&](const std::shared_ptr<World>& world) {
    if (config.num_threads) at::set_num_threads(static_cast<int>(*config.num_threads));
    DistContext context({.mesh = mesh, .world = world, .local_rank = world->rank(), .log_level = config.log_level});
    program(context);
    if (context.is_main_process()) end = end_of(context);
  });
  return end_with(end);
}

}  // namespace

int launch(const LaunchConfig& config, const DeviceMeshParameters& mesh, const Program& program,
           std::optional<std::int64_t> init_timeout) {
  int exit_code = 0;
  const int error_code = run_reporting_errors([&] {
    mesh.validate(ConfigPath{.keys = "mesh"});
    check_threads(config);
    set_library_environment(config.deterministic);
    install_checkpoint_engine();
    if (config.deterministic) set_deterministic();
    const auto here = rank_environment();
    if (here) check_ranks(*here, mesh);
    if (here && here->world_size > 1) {
      refuse_second_launch();
      raise_open_files(open_files_of(here->world_size));
    }
    if (here || mesh.world_size() == 1) {
      constexpr std::int64_t kLongest = 100'000'000;  // about three years; clocks overflow with longer times
      const std::chrono::seconds patience =
          init_timeout ? std::chrono::seconds(std::min(*init_timeout, kLongest)) : kRendezvousTimeout;
      exit_code = run_as_rank(here.value_or(RankEnvironment{}), config, mesh, program, patience);
      return;
    }
    const bool uses_cuda = chooses_cuda(config.device);
    D9D_CHECK(!uses_cuda || config.ranks != RankPlacement::kThreads, ConfigError,
              "[core::launch] expected launch.ranks = processes on GPUs, got threads. Use launch.ranks=auto.");
    if (uses_cuda || config.ranks == RankPlacement::kProcesses) {
      raise_open_files(open_files_of(mesh.world_size()));
      exit_code = run_child_processes({.num_ranks = mesh.world_size()});
    } else {
      exit_code = run_as_threads(config, mesh, program);
    }
  });
  return error_code != 0 ? error_code : exit_code;
}

namespace detail {

int launch_configured(const ConfigSource& source, const LaunchConfig& config, const DeviceMeshParameters& mesh,
                      const Program& program) {
  restart_with_short_spins(source.argc, source.argv);
  int exit_code = 0;  // not changed for --help
  const int load_code = run_reporting_errors([&] {
    load_config(source.argc, source.argv, source.rewrite, source.type(), source.config);
    const auto* const init_timeout = source.init_timeout;
    exit_code = launch(config, mesh, program, init_timeout ? std::optional(*init_timeout) : std::nullopt);
  });
  return load_code != 0 ? load_code : exit_code;
}

}  // namespace detail

template const ValueType& json_type<LaunchConfig>();

}  // namespace d9d
