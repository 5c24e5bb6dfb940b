#include "d9d/core/device/torch_version.h"

#include <dlfcn.h>

#include <cstdint>

#include <ATen/ATen.h>
#include <torch/headeronly/version.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::string running_torch() {
  const std::string config = at::show_config();  // "..., TORCH_VERSION=2.11.0, ..."
  const std::string key = "TORCH_VERSION=";
  const auto begin = config.find(key);
  if (begin == std::string::npos) return "unknown";
  return config.substr(begin + key.size(), config.find(',', begin) - begin - key.size());
}

// Returns a function of LibTorch's CUDA half or of a library that it needs; null if the half is not loaded or has no
// such function.
template <class Function>
Function* find_loaded(const char* name) {
  void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

// NCCL encodes 2.28.9 as 22809.
std::string running_nccl() {
  auto* const get = find_loaded<int(int*)>("ncclGetVersion");
  int version = 0;
  if (get == nullptr || get(&version) != 0) return {};
  return cat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

// LibTorch encodes NCCL's version as numbers of 16 bits, the major version in the highest bits.
std::string built_nccl() {
  auto* const get = find_loaded<std::uint64_t()>("_ZN5torch4cuda4nccl7versionEv");
  if (get == nullptr) return {};
  const std::uint64_t version = get();
  return cat(version >> 32, ".", version >> 16 & 0xffff, ".", version & 0xffff);
}

}  // namespace

LibraryVersions running_versions() { return {.torch = running_torch(), .nccl = running_nccl()}; }

LibraryVersions built_versions() {
  // lint: allow(version-branch): checks at run time that the one supported version is loaded
  return {.torch = TORCH_VERSION, .nccl = built_nccl()};
}

void check_versions(const LibraryVersions& built, const LibraryVersions& running) {
  D9D_CHECK(running.torch == built.torch, StateError, "[core::torch_version] expected LibTorch ", built.torch,
            ", which this program was built against, got ", running.torch,
            ". Install requirements.txt, or build again.");
  D9D_CHECK(running.nccl == built.nccl, StateError, "[core::torch_version] expected NCCL ", built.nccl,
            ", which LibTorch was built against, got ", running.nccl,
            ". Install requirements.txt, and let no other libnccl.so.2 stand in LD_LIBRARY_PATH or LD_PRELOAD.");
}

void check_torch_version() { check_versions(built_versions(), running_versions()); }

std::string describe(const LibraryVersions& versions) {
  return cat("LibTorch ", versions.torch, versions.nccl.empty() ? "" : ", NCCL ", versions.nccl);
}

}  // namespace d9d
