// What of this library needs CUDA's own libraries, in two that are opened where a device is there
// (docs/decisions/0002-load-cuda-late.md):
//
//   libd9d_cuda.so    names symbols of the CUDA half of LibTorch: NCCL's groups, CUDA's IPC, graphs
//   libd9d_cudnn.so   knows nothing of LibTorch: cuDNN's graphs
#pragma once

namespace d9d {

// What libd9d_cuda.so exports as `name`. load_cuda() has returned true. Throws IoError when the library is not found,
// or is that of another build.
[[nodiscard]] void* cuda_library_symbol(const char* name);

// The same of libd9d_cudnn.so, which does not wait for load_cuda().
[[nodiscard]] void* cudnn_library_symbol(const char* name);

}  // namespace d9d
