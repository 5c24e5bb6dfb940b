// The calls of CUDA's runtime and driver that peer memory needs, exported by libd9d_cuda.so as "d9d_cuda_ipc".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "d9d/core/device/cuda_function.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace d9d {

// Each function returns null, or the text of CUDA's error. `device`: index of the caller's device.
struct CudaIpc {
  using Handle = std::array<unsigned char, 64>;

  const char* (*allocate)(int device, std::size_t num_bytes, void** memory, Handle* handle);
  const char* (*free)(int device, void* memory);
  // Maps memory that another process of this machine has allocated on any device.
  const char* (*open)(int device, const Handle& handle, void** memory);
  const char* (*close)(int device, void* memory);
  const char* (*copy)(void* target, const void* source, std::size_t num_bytes, CUstream_st* stream);
  // Makes host memory that processes share known to the device. address: where streams find its words.
  const char* (*register_host)(int device, void* memory, std::size_t num_bytes, void** address);
  const char* (*unregister_host)(int device, void* memory);
  // Sets a word of registered memory, after the work of the stream and visible after it.
  const char* (*write_word)(void* word, std::uint32_t value, CUstream_st* stream);
  // The stream waits until the signed difference of the word and the value is not negative.
  const char* (*wait_for_word)(void* word, std::uint32_t value, CUstream_st* stream);
};

extern "C" CudaIpc d9d_cuda_ipc();
inline constexpr CudaFunction<"d9d_cuda_ipc", decltype(d9d_cuda_ipc)> cuda_ipc;

}  // namespace d9d
