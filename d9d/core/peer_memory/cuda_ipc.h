// The functions of CUDA's runtime and driver that peer memory needs. libd9d_cuda.so exports them as "d9d_cuda_ipc".
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
  // Registers host memory that processes share with the device. address: the device's address of the memory.
  const char* (*register_host)(int device, void* memory, std::size_t num_bytes, void** address);
  const char* (*unregister_host)(int device, void* memory);
  // Enqueues a write of a word of registered memory. A rank that sees the value also sees all earlier work of the
  // stream.
  const char* (*write_word)(void* word, std::uint32_t value, CUstream_st* stream);
  // Makes the stream wait until the signed difference of the word and the value is not negative.
  const char* (*wait_for_word)(void* word, std::uint32_t value, CUstream_st* stream);
};

extern "C" CudaIpc d9d_cuda_ipc();
inline constexpr CudaFunction<"d9d_cuda_ipc", decltype(d9d_cuda_ipc)> cuda_ipc;

}  // namespace d9d
