// IPC of CUDA's runtime: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__DEVICE.html
// Words that streams write and wait for: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html
#include "d9d/core/peer_memory/cuda_ipc.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include <c10/cuda/CUDAFunctions.h>

namespace d9d {
namespace {

static_assert(sizeof(CudaIpc::Handle) == sizeof(cudaIpcMemHandle_t));

// Clears the error, so that LibTorch's next check does not see it.
const char* text_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  (void)cudaGetLastError();
  return cudaGetErrorString(error);
}

const char* free_memory(int device, void* memory) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  return text_of(cudaFree(memory));
}

const char* allocate(int device, std::size_t num_bytes, void** memory, CudaIpc::Handle* handle) {
  // Rounds up to pages: allocations that share one of the driver's pages would be exported together.
  constexpr std::size_t kPage = std::size_t{2} << 20;
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  const char* error = text_of(cudaMalloc(memory, (num_bytes + kPage - 1) / kPage * kPage));
  if (error != nullptr) return error;
  cudaIpcMemHandle_t exported;
  error = text_of(cudaIpcGetMemHandle(&exported, *memory));
  if (error != nullptr) {
    (void)free_memory(device, *memory);
    return error;
  }
  std::memcpy(handle->data(), &exported, sizeof(exported));
  return nullptr;
}

const char* open(int device, const CudaIpc::Handle& handle, void** memory) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  cudaIpcMemHandle_t exported;
  std::memcpy(&exported, handle.data(), sizeof(exported));
  return text_of(cudaIpcOpenMemHandle(memory, exported, cudaIpcMemLazyEnablePeerAccess));
}

const char* close(int device, void* memory) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  return text_of(cudaIpcCloseMemHandle(memory));
}

const char* copy(void* target, const void* source, std::size_t num_bytes, CUstream_st* stream) {
  return text_of(cudaMemcpyAsync(target, source, num_bytes, cudaMemcpyDefault, stream));
}

const char* register_host(int device, void* memory, std::size_t num_bytes, void** address) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  const char* const error =
      text_of(cudaHostRegister(memory, num_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
  return error != nullptr ? error : text_of(cudaHostGetDevicePointer(address, memory, 0));
}

const char* unregister_host(int device, void* memory) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  return text_of(cudaHostUnregister(memory));
}

// The driver is not linked, because it exists only on machines with a device.
using WordOperation = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
WordOperation word_operation(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  (void)cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &status);
  return status == cudaDriverEntryPointSuccess ? reinterpret_cast<WordOperation>(function) : nullptr;
}

const char* run(WordOperation operation, void* word, std::uint32_t value, unsigned int flags, CUstream_st* stream) {
  if (operation == nullptr) return "the driver has no operations of streams on words";
  const CUresult result = operation(stream, reinterpret_cast<CUdeviceptr>(word), value, flags);
  return result == CUDA_SUCCESS ? nullptr : "the driver refuses an operation of a stream on a word";
}

const char* write_word(void* word, std::uint32_t value, CUstream_st* stream) {
  static const WordOperation operation = word_operation("cuStreamWriteValue32");
  return run(operation, word, value, CU_STREAM_WRITE_VALUE_DEFAULT, stream);
}

const char* wait_for_word(void* word, std::uint32_t value, CUstream_st* stream) {
  static const WordOperation operation = word_operation("cuStreamWaitValue32");
  return run(operation, word, value, CU_STREAM_WAIT_VALUE_GEQ, stream);
}

}  // namespace
}  // namespace d9d

extern "C" __attribute__((visibility("default"))) d9d::CudaIpc d9d_cuda_ipc() {
  return {.allocate = d9d::allocate,
          .free = d9d::free_memory,
          .open = d9d::open,
          .close = d9d::close,
          .copy = d9d::copy,
          .register_host = d9d::register_host,
          .unregister_host = d9d::unregister_host,
          .write_word = d9d::write_word,
          .wait_for_word = d9d::wait_for_word};
}
