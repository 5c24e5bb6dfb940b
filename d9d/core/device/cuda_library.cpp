#include "d9d/core/device/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>

#include "d9d/base/check.h"

namespace d9d {
namespace {

// Looks beside the program, then where its RPATH points.
void* open_library(const char* name) {
  const auto beside = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  void* library = std::filesystem::exists(beside) ? dlopen(beside.c_str(), RTLD_NOW) : dlopen(name, RTLD_NOW);
  if (library != nullptr) return library;
  throw IoError(
      cat("[core::cuda_library] expected ", name, " beside the program or on its RPATH, got: ", dlerror(),
          ". Copy it there; in a build with nvcc, cmake --build FOLDER --target d9d_cuda d9d_cudnn makes it."));
}

void* symbol_of(const char* library, const char* name) {
  D9D_CHECK(is_built_with_cuda(), ConfigError, "[core::cuda_library] expected a build with nvcc for ", name,
            ", got one without. Configure with -DD9D_CUDA=ON.");
  void* const symbol = dlsym(open_library(library), name);
  D9D_CHECK(symbol != nullptr, IoError, "[core::cuda_library] expected ", library, " of this build, got one without ",
            name, ". Rebuild it.");
  return symbol;
}

}  // namespace

bool is_built_with_cuda() { return D9D_BUILT_WITH_CUDA; }

void* cuda_library_symbol(const char* name) { return symbol_of("libd9d_cuda.so", name); }

void* cudnn_library_symbol(const char* name) { return symbol_of("libd9d_cudnn.so", name); }

}  // namespace d9d
