// Launches a kernel that compile.py compiled: neither Python nor a compiler is needed when the program runs.
//
// Example
//   launch(k_forward, num_elements, stream, x.const_data_ptr<float>(), out.mutable_data_ptr<float>(), num_elements);
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>

#include "d9d/base/check.h"

struct CompiledKernel {
  const unsigned char* code;  // for sm_90
  const char* name;
  std::int64_t block;  // elements
  unsigned num_threads;
  unsigned shared_bytes;
};

inline void check(cudaError_t status, const char* name) {
  D9D_CHECK(status == cudaSuccess, d9d::StateError, "[example] expected ", name, " to start, got ",
            cudaGetErrorString(status), ". It is compiled for compute capability 9.0.");
}

// Loads the kernel, for all devices, when it is first used.
inline cudaKernel_t loaded(const CompiledKernel& kernel) {
  static std::map<const unsigned char*, cudaKernel_t> all;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  cudaKernel_t& result = all[kernel.code];
  if (result == nullptr) {
    cudaLibrary_t library = nullptr;
    check(cudaLibraryLoadData(&library, kernel.code, nullptr, nullptr, 0, nullptr, nullptr, 0), kernel.name);
    check(cudaLibraryGetKernel(&result, library, kernel.name), kernel.name);
  }
  return result;
}

// Launches enough blocks for `size` elements. The arguments are those of the Triton function without its constants.
// Triton adds two more for scratch memory, which are null for kernels that need none.
template <class... Arguments>
void launch(const CompiledKernel& kernel, std::int64_t size, cudaStream_t stream, Arguments... arguments) {
  void* scratch = nullptr;
  std::array<void*, sizeof...(Arguments) + 2> pointers{const_cast<void*>(static_cast<const void*>(&arguments))...,
                                                       &scratch, &scratch};
  const auto blocks = static_cast<unsigned>((size + kernel.block - 1) / kernel.block);
  if (blocks == 0) return;
  check(cudaLaunchKernel(reinterpret_cast<const void*>(loaded(kernel)), dim3(blocks), dim3(kernel.num_threads),
                         pointers.data(), kernel.shared_bytes, stream),
        kernel.name);
}
