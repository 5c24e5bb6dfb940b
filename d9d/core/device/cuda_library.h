// libd9d_cuda.so: what of this library names symbols of the CUDA half of LibTorch, or of the CUDA runtime. It is opened
// where a device is there (docs/decisions/0002-load-cuda-late.md).
#pragma once

namespace d9d {

// What the library exports as `name`. load_cuda() has returned true. Throws IoError when the library is not found, or
// is that of another build.
[[nodiscard]] void* cuda_library_symbol(const char* name);

}  // namespace d9d
