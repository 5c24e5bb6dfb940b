#include "d9d/data/pack/prefetched_packs.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d::detail {

void copy_to(c10::Device device, at::Tensor& tensor) {
  if (tensor.defined()) tensor = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/true, /*copy=*/true);
}

void warn_left_behind(const PrefetchOptions& options) {
  options.log.warning("data: a pack that is still being read is abandoned after ", options.patience.count(), " s");
}

void throw_left_behind() {
  throw StateError(
      "[data::PrefetchedPacks] expected the pack that is being read to end before the stream is used otherwise, got "
      "one "
      "that hangs. Find out what its dataset waits for.");
}

}  // namespace d9d::detail
