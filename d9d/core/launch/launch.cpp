#include "d9d/core/launch/launch.h"

#include <iostream>
#include <string>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "d9d/base/check.h"
#include "d9d/base/environment.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/core/device/cuda_runtime.h"
#include "d9d/core/launch/thread_ranks.h"

namespace d9d {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

c10::Device choose_device(DeviceChoice choice) {
  if (choice == DeviceChoice::kCpu) return c10::kCPU;
  const bool has_cuda = load_cuda();
  D9D_CHECK(has_cuda || choice == DeviceChoice::kAuto, ConfigError,
            "[core::launch] expected a CUDA device for launch.device = cuda, got none. Use launch.device=cpu.");
  return has_cuda ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

// torchrun and SLURM start one process a rank; this version runs one rank.
void check_world_size() {
  for (const char* const name : {"WORLD_SIZE", "SLURM_NTASKS"}) {
    const auto value = environment_variable(name);
    D9D_CHECK(!value || *value == "1" || value->empty(), ConfigError, "[core::launch] ", name, " = ",
              value.value_or(""), ": more than one rank is not built in this version. Start one process.");
  }
}

}  // namespace

int run_reporting_errors(const std::function<void()>& program) {
  const auto report = [](const std::string& text) { write_line_to_stderr("error: " + first_line(text)); };
  try {
    program();
    return 0;
  } catch (const HelpRequested& help) {
    std::cout << help.what() << '\n';
    return 0;
  } catch (const UsageError& error) {
    report(error.what());
    return 2;
  } catch (const c10::Error& error) {
    report(error.what_without_backtrace());
  } catch (const std::exception& error) {
    report(error.what());
  }
  return 1;
}

int launch(const LaunchConfig& config, const DeviceMeshParameters& mesh,
           const std::function<void(DistContext&)>& program) {
  return run_reporting_errors([&] {
    check_world_size();
    install_checkpoint_engine();
    if (config.num_threads) at::set_num_threads(static_cast<int>(*config.num_threads));
    const c10::Device device = choose_device(config.device);
    const auto run_rank = [&](const std::shared_ptr<World>& world) {
      DistContext context({.mesh = mesh, .world = world, .local_rank = world->rank()});
      program(context);
    };
    if (mesh.world_size() == 1) {
      run_rank(one_rank_world(device));
    } else {
      D9D_CHECK(device.is_cpu(), ConfigError, "[core::launch] expected launch.device = cpu for ", mesh.world_size(),
                " ranks, got ", device.str(), ": several GPUs are not built in this version.");
      run_thread_ranks(mesh.world_size(), run_rank);
    }
  });
}

}  // namespace d9d
