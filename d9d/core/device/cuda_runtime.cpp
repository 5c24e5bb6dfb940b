#include "d9d/core/device/cuda_runtime.h"

#include <dlfcn.h>

#include <array>
#include <atomic>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/environment.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/device/nvtx_ranges.h"

namespace d9d {
namespace {

// Constants of the driver's interface (cuda.h), which is missing on machines without CUDA.
constexpr int kSuccess = 0;
constexpr int kStubLibrary = 34;
constexpr int kNoDevice = 100;

bool load() {
  const int num_devices = num_cuda_devices();
  if (num_devices == 0) return false;
  // RTLD_GLOBAL, so that libraries that are loaded later find its symbols.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw IoError(cat("[core::load_cuda] expected libtorch_cuda.so beside libtorch_cpu.so, got: ", dlerror(),
                      ". Install requirements.txt."));
  }
  D9D_CHECK(
      at::globalContext().hasCUDA(), StateError, "[core::load_cuda] expected LibTorch to see the ", num_devices,
      " CUDA devices of the driver, got none. Call load_cuda() before anything asks LibTorch about CUDA, and check "
      "that the driver supports the CUDA version of the torch wheel.");
  if (environment_variable("NVTX_INJECTION64_PATH")) show_ranges_to_nvtx();  // set by tools that read NVTX
  install_checkpoint_engine();  // LibTorch starts the threads of devices for the first engine that runs a backward
  return true;
}

}  // namespace

int num_cuda_devices() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return 0;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto get_count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  D9D_CHECK(init != nullptr && get_count != nullptr, IoError,
            "[core::load_cuda] expected libcuda.so.1 to be NVIDIA's driver, got a library without cuInit. Check the "
            "driver's installation.");
  int count = 0;
  int status = init(0);
  if (status == kSuccess) status = get_count(&count);
  if (status == kNoDevice || status == kStubLibrary) return 0;
  D9D_CHECK(status == kSuccess, IoError, "[core::load_cuda] expected the CUDA driver to start, got its error ", status,
            ". Check it with nvidia-smi, or set CUDA_VISIBLE_DEVICES to nothing to run on the CPU.");
  return count;
}

namespace {

int ask_capability_major(c10::Device device) {
  constexpr int kCapabilityMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  D9D_CHECK(driver != nullptr, StateError,
            "[core::cuda_capability] expected the CUDA driver, got none. Call num_cuda_devices().");
  const auto get_attribute = reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  int major = 0;
  const int status = get_attribute(&major, kCapabilityMajor, device.has_index() ? device.index() : 0);
  D9D_CHECK(status == kSuccess, StateError, "[core::cuda_capability] expected an answer for ", device.str(),
            ", got the driver's error ", status, ".");
  return major;
}

}  // namespace

int cuda_capability_major(c10::Device device) {
  static std::array<std::atomic<int>, 64> known{};  // lint: allow(mutable-global): facts of the machine
  std::atomic<int>& major = known.at(static_cast<std::size_t>(device.has_index() ? device.index() : 0));
  if (major == 0) major = ask_capability_major(device);
  return major;
}

std::string cuda_device_name(c10::Device device) {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  D9D_CHECK(driver != nullptr, StateError,
            "[core::cuda_device_name] expected the CUDA driver, got none. Call num_cuda_devices().");
  const auto get_name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  std::array<char, 256> name{};
  const int status = get_name(name.data(), name.size(), device.has_index() ? device.index() : 0);
  D9D_CHECK(status == kSuccess, StateError, "[core::cuda_device_name] expected an answer for ", device.str(),
            ", got the driver's error ", status, ".");
  return name.data();
}

bool is_hopper(c10::Device device) { return cuda_capability_major(device) == 9; }

bool load_cuda() {
  static const bool is_loaded = load();
  return is_loaded;
}

}  // namespace d9d
