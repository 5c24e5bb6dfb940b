// The parts of this library that need CUDA's own libraries. They are in two shared libraries, which are opened when a
// device is present (docs/decisions/0002-load-cuda-late.md):
//
//   libd9d_cuda.so    this library's kernels; and what uses symbols of the CUDA half of LibTorch, or of cublasLt:
//                     NCCL's groups, CUDA's IPC, graphs, cuBLAS's products
//   libd9d_cudnn.so   is independent of LibTorch: cuDNN's graphs
#pragma once

namespace d9d {

// Whether this library was built with nvcc, and so has these two.
[[nodiscard]] bool is_built_with_cuda();

// Returns the symbol `name` of libd9d_cuda.so. Requires that load_cuda() has returned true. Throws IoError if the
// library is not found, or has no such symbol; ConfigError in a build without nvcc.
[[nodiscard]] void* cuda_library_symbol(const char* name);

// The same for libd9d_cudnn.so, which does not need load_cuda().
[[nodiscard]] void* cudnn_library_symbol(const char* name);

}  // namespace d9d
