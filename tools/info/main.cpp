// What this build is made of, which devices it sees, and what each family of kernels would run on them.
//
//   d9d_info
#include <dlfcn.h>

#include <iostream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/headeronly/version.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/cuda_runtime.h"
#include "d9d/core/device/torch_version.h"
#include "d9d/core/launch/launch.h"
#include "d9d/kernels/attention/scaled_dot_product_attention.h"
#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/grouped_mm/grouped_mm.h"

namespace {

using d9d::cat;

// A function of a library that this program does not link; null where the library or the function is missing.
template <class Function>
Function* find(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_LAZY);
  return handle == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle, name));
}

// 21309 of NCCL and 91900 of cuDNN are 2.13.9 and 9.19.0; 13000 of CUDA is 13.0.
std::string dotted(int version, int major_unit, int minor_unit) {
  const std::string text = cat(version / major_unit, ".", version % major_unit / minor_unit);
  return minor_unit == 1 || major_unit == 1000 ? text : cat(text, ".", version % minor_unit);
}

std::string nccl_version() {
  auto* const get = find<int(int*)>("libnccl.so.2", "ncclGetVersion");
  int version = 0;
  return get != nullptr && get(&version) == 0 ? dotted(version, 10000, 100) : "not found";
}

std::string driver_version() {
  auto* const get = find<int(int*)>("libcuda.so.1", "cuDriverGetVersion");
  int version = 0;
  return get != nullptr && get(&version) == 0 ? cat(version / 1000, ".", version % 1000 / 10) : "not found";
}

void print_build() {
  std::cout << "d9d " << D9D_VERSION << ", " << D9D_BUILD_TYPE << ", g++ " << __VERSION__ << ", CUDA kernels "
            << (d9d::is_built_with_cuda() ? "for compute capability 9.0, in libd9d_cuda.so" : "not built (no nvcc)")
            << '\n'
            << "LibTorch " << d9d::running_versions().torch << " (built against " << TORCH_VERSION << ")\n";
}

void print_devices() {
  const int num_devices = d9d::num_cuda_devices();
  if (num_devices == 0) {
    std::cout << "CUDA: no device\n";
    return;
  }
  const int runtime = static_cast<int>(at::detail::getCUDAHooks().versionCUDART());
  const int cudnn = static_cast<int>(at::detail::getCUDAHooks().versionRuntimeCuDNN());
  std::cout << "CUDA: runtime " << runtime / 1000 << '.' << runtime % 1000 / 10 << ", driver for " << driver_version()
            << ", cuDNN " << dotted(cudnn, 10000, 100) << ", NCCL " << nccl_version() << '\n';
  auto* const get_name = find<int(char*, int, int)>("libcuda.so.1", "cuDeviceGetName");
  auto* const get_bytes = find<int(std::size_t*, int)>("libcuda.so.1", "cuDeviceTotalMem_v2");
  for (int device = 0; device < num_devices; ++device) {
    std::string name(256, '\0');
    std::size_t bytes = 0;
    if (get_name != nullptr) get_name(name.data(), static_cast<int>(name.size()), device);
    if (get_bytes != nullptr) get_bytes(&bytes, device);
    std::cout << "  cuda:" << device << "  " << name.c_str() << ", " << (bytes >> 30) << " GiB, compute capability "
              << d9d::cuda_capability_major(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device))) << ".x\n";
  }
}

void print_row(const std::string& family, const std::string& runs, const std::string& why) {
  std::cout << "  " << family << std::string(family.size() < 38 ? 38 - family.size() : 1, ' ') << runs
            << std::string(runs.size() < 14 ? 14 - runs.size() : 1, ' ') << why << '\n';
}

// Norm, activation, rotary embedding, cross entropy, expert routing and the optimisers decide alike.
void print_elementwise(at::Device device, at::ScalarType dtype) {
  namespace detail = d9d::kernels::detail;
  const at::Tensor tensor = at::empty({0}, at::device(device).dtype(dtype));
  const std::string family = cat("operators of this library, ", dtype);
  if (detail::has_cuda_kernels(tensor)) return print_row(family, "own CUDA", "compute capability 9");
  if (detail::has_cpu_loops(tensor)) return print_row(family, "own CPU loops", "float, double or bfloat16 on the CPU");
  const bool is_missing = device.is_cuda() && !d9d::is_built_with_cuda();
  print_row(family, "ATen",
            device.is_cpu() ? "no CPU loops for this type"
                            : (is_missing ? "built without nvcc" : "own kernels need compute capability 9"));
}

const char* name_of(d9d::kernels::SdpaBackend backend) {
  switch (backend) {
    case d9d::kernels::SdpaBackend::kCudnn:
      return "cuDNN graphs";
    case d9d::kernels::SdpaBackend::kFlash:
      return "flash";
    case d9d::kernels::SdpaBackend::kTorch:
      return "LibTorch";
    case d9d::kernels::SdpaBackend::kEager:
      return "eager";
  }
  return "";
}

// Of bf16 with 128 features a head.
void print_attention(const std::string& family, const d9d::kernels::SdpaNeeds& needs, at::Device device) {
  const auto query = at::empty({0, 128}, at::device(device).dtype(at::kBFloat16));
  const auto choice = d9d::kernels::resolve_sdpa({.needs = needs, .device = d9d::kernels::sdpa_device_of(query)});
  print_row(cat("attention", family), name_of(choice.backend), choice.why);
}

void print_attentions(at::Device device) {
  print_attention("", {}, device);
  print_attention(" with a mask", {.mask = true}, device);
  print_attention(" with a window", {.window = true}, device);
  print_attention(" with sinks", {.sinks = true}, device);
  print_attention(" of packed sequences", {.packed = true}, device);
  print_attention(" with a softcap", {.softcap = true}, device);
}

void print_grouped_mm(at::Device device) {
  using d9d::kernels::GroupedMMBackend;
  const auto choice = d9d::kernels::resolve_grouped_mm(d9d::kernels::grouped_mm_request(device));
  const auto name_of = [](GroupedMMBackend backend) {
    switch (backend) {
      case GroupedMMBackend::kHopper:
        return "own CUDA";
      case GroupedMMBackend::kTorch:
        return "LibTorch";
      case GroupedMMBackend::kEager:
        return "eager";
    }
    return "";
  };
  print_row("grouped products of experts", name_of(choice.backend), choice.why);
}

// Of bf16: forward, where results are large and sums short, and the input gradient of SwiGLU's last linear.
void print_products(at::Device device) {
  const bool has_kernels =
      d9d::kernels::detail::has_cuda_kernels(at::empty({0}, at::device(device).dtype(at::kBFloat16)));
  const auto row = [&](const char* family, const char* runs, const char* why) {
    print_row(family, has_kernels ? runs : "ATen", has_kernels ? why : "needs a Hopper GPU and a build with CUDA");
  };
  row("large products of linears", "cuBLAS", "not its first kernel but one that writes while it multiplies");
  row("SwiGLU's last linear, input gradient", "own CUDA", "where its tiles of 256 x 256 fill the device");
}

void print_choices(at::Device device) {
  std::cout << "\nOn " << device << ":\n";
  for (const auto dtype : {at::kBFloat16, at::kFloat, at::kHalf, at::kDouble}) print_elementwise(device, dtype);
  print_attentions(device);
  print_grouped_mm(device);
  print_products(device);
}

}  // namespace

int main() {
  return d9d::run_reporting_errors([] {
    d9d::load_cuda();  // before LibTorch is asked anything
    print_build();
    print_devices();
    print_choices(at::kCPU);
    if (d9d::load_cuda()) print_choices(at::Device(at::kCUDA, 0));
  });
}
