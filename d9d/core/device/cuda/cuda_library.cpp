#include "d9d/core/device/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr const char* kLibrary = "libd9d_cuda.so";

// Beside the program, or where its RPATH points.
void* open_library() {
  const auto beside = std::filesystem::read_symlink("/proc/self/exe").parent_path() / kLibrary;
  void* library = std::filesystem::exists(beside) ? dlopen(beside.c_str(), RTLD_NOW) : dlopen(kLibrary, RTLD_NOW);
  if (library != nullptr) return library;
  throw IoError(cat("[core::cuda_library] expected ", kLibrary, " beside the program or on its RPATH, got: ", dlerror(),
                    ". Copy it there; a build with nvcc makes it."));
}

}  // namespace

void* cuda_library_symbol(const char* name) {
  void* const symbol = dlsym(open_library(), name);
  D9D_CHECK(symbol != nullptr, IoError, "[core::cuda_library] expected ", kLibrary, " of this build, got one without ",
            name, ". Rebuild it.");
  return symbol;
}

}  // namespace d9d
