#include "d9d/data/pack/prefetched_packs.h"

#include <cmath>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d::detail {

void copy_to(c10::Device device, at::Tensor& tensor) {
  if (tensor.defined()) tensor = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/true, /*copy=*/true);
}

void warn_left_behind(const PrefetchOptions& options) {
  options.log.warning("data: a pack that is still being read is abandoned after ", options.patience.count(), " s");
}

void warn_long_wait(const PrefetchOptions& options, double seconds) {
  options.log.warning("data: the step has waited ", std::round(10 * seconds) / 10,
                      " s for its data, in PackStream::next()");
}

void throw_stopped() {
  throw IoError(
      "[data::PrefetchedPacks] stopped, as asked, in PackStream::next(), which did not return: a step without data "
      "cannot be completed. Find out what the stream waits for; a job that saves continues from its newest "
      "checkpoint.");
}

std::chrono::duration<double> patience_of_wait(const PrefetchOptions& options) {
  constexpr std::chrono::milliseconds kMore{200};
  return options.patience + kMore;
}

void throw_left_behind() {
  throw StateError(
      "[data::PrefetchedPacks] expected the pack that is being read to end before the stream is used otherwise, got "
      "one "
      "that hangs. Find out what its dataset waits for.");
}

}  // namespace d9d::detail
