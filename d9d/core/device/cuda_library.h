// The parts of this library that need CUDA's own libraries. They are in two shared libraries, which are opened when a
// device is present (docs/decisions/0002-load-cuda-late.md):
//
//   libd9d_cuda.so    this library's kernels, and code that calls LibTorch's CUDA half or cublasLt: NCCL groups, CUDA
//                     IPC, CUDA graphs, matrix products of cuBLAS
//   libd9d_cudnn.so   cuDNN's graphs; does not need LibTorch
#pragma once

namespace d9d {

// Whether this library was built with nvcc, and so has libd9d_cuda.so and libd9d_cudnn.so.
[[nodiscard]] bool is_built_with_cuda();

// Returns the symbol `name` of libd9d_cuda.so. Requires that load_cuda() has returned true. Throws IoError if the
// library is not found, or has no such symbol; ConfigError in a build without nvcc.
[[nodiscard]] void* cuda_library_symbol(const char* name);

// Returns the symbol `name` of libd9d_cudnn.so, which does not need load_cuda(). Throws as cuda_library_symbol().
[[nodiscard]] void* cudnn_library_symbol(const char* name);

}  // namespace d9d
