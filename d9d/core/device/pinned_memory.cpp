#include "d9d/core/device/pinned_memory.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

// Returns a function of the CUDA runtime that was loaded with LibTorch's CUDA half (cuda_runtime.h). Looks it up by
// name, since this file is also compiled for machines without CUDA.
template <class Function>
Function* runtime_function(const char* name) {
  auto* const function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  D9D_CHECK(function != nullptr, StateError, "[core::pinned_memory] expected ", name,
            " of the CUDA runtime, got none. ", "Call load_cuda() first.");
  return function;
}

constexpr unsigned kPortable = 1;  // cudaHostRegisterPortable: for all devices of the process

int lock(std::span<std::byte> bytes, c10::Device device) {
  const int index = device.has_index() ? device.index() : 0;
  if (const int status = runtime_function<int(int)>("cudaSetDevice")(index)) return status;
  const int status =
      runtime_function<int(void*, std::size_t, unsigned)>("cudaHostRegister")(bytes.data(), bytes.size(), kPortable);
  if (status != 0) runtime_function<int()>("cudaGetLastError")();  // clears the error: the next launch would report it
  return status;
}

}  // namespace

PinnedMemory::PinnedMemory(std::int64_t num_bytes, c10::Device device) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(num_bytes, 1));
  void* const pages = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  D9D_CHECK(pages != MAP_FAILED, StateError, "[core::pinned_memory] expected ", size,
            " bytes of host memory, got none of that size. Free memory of the machine.");
  bytes_ = {static_cast<std::byte*>(pages), size};
  ::madvise(pages, size, MADV_HUGEPAGE);  // fewer pages to lock
  if (device.is_cpu()) return;
  const int status = lock(bytes_, device);
  if (status == 0) {
    is_locked_ = true;
    return;
  }
  ::munmap(pages, size);
  throw StateError(cat("[core::pinned_memory] expected ", size,
                       " bytes of host memory that CUDA can lock, got its error ", status,
                       ". Free memory of the machine, or raise the limit of locked memory (ulimit -l)."));
}

PinnedMemory::~PinnedMemory() {
  if (is_locked_) {
    const auto unlock = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "cudaHostUnregister"));
    if (unlock != nullptr) unlock(bytes_.data());
  }
  ::munmap(bytes_.data(), bytes_.size());
}

at::Tensor PinnedMemory::tensor(std::int64_t offset, at::IntArrayRef shape, at::ScalarType dtype) const {
  const std::int64_t size = c10::multiply_integers(shape) * static_cast<std::int64_t>(c10::elementSize(dtype));
  D9D_ASSERT(offset >= 0 && offset + size <= std::ssize(bytes_), "a tensor that lies outside of its memory");
  return at::from_blob(bytes_.data() + offset, shape, at::TensorOptions().dtype(dtype));
}

}  // namespace d9d
