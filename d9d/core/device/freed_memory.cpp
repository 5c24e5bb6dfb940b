#include "d9d/core/device/freed_memory.h"

#include <malloc.h>

#include <ATen/core/CachingHostAllocator.h>

namespace d9d {

void return_freed_memory(c10::Device device) {
  malloc_trim(0);
  if (device.is_cuda()) at::getHostAllocator(at::kCUDA)->empty_cache();
}

}  // namespace d9d
