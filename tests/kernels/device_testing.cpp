#include "tests/kernels/device_testing.h"

#include <cmath>

#include <ATen/DeviceAccelerator.h>

#include "tests/support/load_cuda.h"
#include "tests/support/tolerances.h"

namespace d9d::testing {
namespace {

double unit_roundoff(at::ScalarType dtype) {  // the largest relative error of a rounding
  switch (dtype) {
    case at::kBFloat16:
      return std::ldexp(1.0, -8);
    case at::kHalf:
      return std::ldexp(1.0, -11);
    case at::kFloat:
      return std::ldexp(1.0, -24);
    default:
      return std::ldexp(1.0, -53);
  }
}

}  // namespace

void expect_no_worse(const std::map<std::string, at::Tensor>& actual, const std::map<std::string, at::Tensor>& peer,
                     const std::map<std::string, at::Tensor>& exact) {
  ASSERT_EQ(actual.size(), exact.size());
  for (const auto& [name, reference] : exact) {
    ASSERT_EQ(actual.at(name).sizes(), reference.sizes()) << name;
    ASSERT_EQ(actual.at(name).scalar_type(), peer.at(name).scalar_type()) << name;
    const auto error_of = [&](const at::Tensor& tensor) {
      return (tensor.detach().to(at::kDouble) - reference).norm().item<double>();
    };
    const double unit = unit_roundoff(actual.at(name).scalar_type());
    const double error = error_of(actual.at(name)), peer_error = error_of(peer.at(name));
    const double least = unit * reference.norm().item<double>();
    EXPECT_TRUE(error <= std::max(test::tolerance("kernel error ratio").value * peer_error, least))  // false for NaN
        << name << ": error " << error << ", the peer's " << peer_error << ", a rounding " << least;
  }
}

std::int64_t peak_bytes(const std::function<void()>& work) {
  const auto stats = [] { return at::accelerator::getDeviceStats(0).allocated_bytes[0]; };
  at::accelerator::resetPeakStats(0);
  const std::int64_t before = stats().current;
  work();
  return stats().peak - before;
}

std::int64_t free_bytes() {
  at::accelerator::emptyCache();
  return static_cast<std::int64_t>(at::accelerator::getMemoryInfo(0).first);
}

at::Tensor ramp(at::IntArrayRef sizes, double step, at::ScalarType dtype) {
  const auto numel = c10::multiply_integers(sizes);
  return at::arange(numel, at::TensorOptions(kGpu).dtype(at::kDouble))
      .mul_(step)
      .sin_()
      .mul_(1e3)
      .frac_()
      .to(dtype)
      .view(sizes);
}

}  // namespace d9d::testing
