#include "d9d/core/communicator/to_host.h"

#include <ATen/ATen.h>

namespace d9d {

at::Tensor to_host(const at::Tensor& values, Communicator& crossed) {
  at::Tensor host = values.cpu();
  crossed.throw_if_failed();
  return host;
}

}  // namespace d9d
