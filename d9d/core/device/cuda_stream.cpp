#include "d9d/core/device/cuda_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace d9d {

CUstream_st* current_cuda_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return static_cast<CUstream_st*>(guard.getStreamNativeHandle(guard.getStream(device)));
}

}  // namespace d9d
