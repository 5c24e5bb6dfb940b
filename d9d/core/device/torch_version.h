// The versions of LibTorch and NCCL at run time. Their libraries have no version in their names, so a program loads
// whatever wheels are installed.
//
// Example
//   check_torch_version();
//   context.log().info(describe(running_versions()));  // LibTorch 2.11.0, NCCL 2.28.9
#pragma once

#include <string>

namespace d9d {

struct LibraryVersions {
  std::string torch;  // "2.11.0"
  std::string nccl;   // "2.28.9"; empty if the CUDA half of LibTorch is not loaded

  bool operator==(const LibraryVersions&) const = default;
};

// The versions that this process has loaded. Asks LibTorch about CUDA: on a machine with a device, call load_cuda()
// before.
[[nodiscard]] LibraryVersions running_versions();

// The LibTorch that this library was built against, and the NCCL that the loaded LibTorch was built against. Call
// load_cuda() before.
[[nodiscard]] LibraryVersions built_versions();

// Throws StateError, naming the first version that differs, unless both are equal.
void check_versions(const LibraryVersions& built, const LibraryVersions& running);
void check_torch_version();  // checks this process; call load_cuda() before

[[nodiscard]] std::string describe(const LibraryVersions& versions);

}  // namespace d9d
