#include "d9d/core/communicator/process_group/nccl_group.h"

#include <dlfcn.h>

#include <filesystem>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_runtime.h"

namespace d9d {
namespace {

constexpr const char* kLibrary = "libd9d_cuda.so";

// Beside the program, or where its RPATH points.
void* open_library() {
  const auto beside = std::filesystem::read_symlink("/proc/self/exe").parent_path() / kLibrary;
  void* library = std::filesystem::exists(beside) ? dlopen(beside.c_str(), RTLD_NOW) : dlopen(kLibrary, RTLD_NOW);
  if (library != nullptr) return library;
  throw IoError(cat("[core::nccl] expected ", kLibrary, " beside the program or on its RPATH, got: ", dlerror(),
                    ". Copy it there; a build with nvcc makes it."));
}

}  // namespace

MakeProcessGroup nccl_groups(c10::Device device) {
  D9D_CHECK(load_cuda(), ConfigError,
            "[core::nccl] expected a CUDA device, got none. Use launch.device=cpu: its ranks communicate by Gloo.");
  const auto make = reinterpret_cast<MakeNcclGroup>(dlsym(open_library(), "d9d_make_nccl_group"));
  D9D_CHECK(make != nullptr, IoError, "[core::nccl] expected ", kLibrary,
            " of this build, got one without d9d_make_nccl_group. Rebuild it.");
  return [make, device](const c10::intrusive_ptr<c10d::Store>& store, const ProcessGroupOptions& options) {
    ProcessGroup result;
    make(result, store, options, device);
    return result;
  };
}

}  // namespace d9d
