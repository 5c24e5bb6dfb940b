#include "tests/kernels/cuda_testing.h"

#include <algorithm>
#include <cmath>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Allocator.h>

#include "d9d/base/check.h"

#include "tests/support/tolerances.h"

namespace d9d::testing {
namespace {

// How far a result of this dtype and magnitude may be from the exact one even if the composition is exact.
double unavoidable_error(at::ScalarType dtype, double scale) {
  switch (dtype) {
    case at::kDouble:  // the composition in fp64 serves as the exact result
      return test::tolerance("fp64").value * std::max(1.0, scale);
    case at::kFloat:  // sums have another order
      return 0x1p-21 * scale;
    case at::kHalf:
      return 0x1p-10 * scale;
    default:
      return 0x1p-7 * scale;
  }
}

double magnitude(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>(); }

// Results of fp64 are computed in fp32 if another input is narrower.
at::ScalarType computed_dtype(at::ScalarType dtype, const std::vector<at::Tensor>& inputs) {
  const bool are_all_wide = std::ranges::all_of(
      inputs, [](const at::Tensor& input) { return !input.is_floating_point() || input.scalar_type() == at::kDouble; });
  return dtype == at::kDouble && !are_all_wide ? at::kFloat : dtype;
}

double error(const at::Tensor& actual, const at::Tensor& exact) { return magnitude(actual.to(at::kDouble) - exact); }

std::vector<at::Tensor> in_fp64(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& tensor : tensors) wide.push_back(tensor.is_floating_point() ? tensor.to(at::kDouble) : tensor);
  return wide;
}

double unit_roundoff(at::ScalarType dtype) {  // the largest relative error of one rounding
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

at::Tensor device_values(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType dtype) {
  return values(shape, seed, dtype).to(at::kCUDA);
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

std::vector<at::Tensor> outputs_and_gradients(const TensorFunction& function, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.is_floating_point() ? leaf(input) : input);
  std::vector<at::Tensor> results = function(leaves);
  std::vector<at::Tensor> grads;
  for (const at::Tensor& output : results) {
    // Gradients are representable in the narrowest dtype, so that all runs get the same ones.
    const at::Tensor grad = values(output.sizes(), 1000 + grads.size(), at::kBFloat16).to(at::kHalf);
    grads.push_back(grad.to(output.options()));
  }
  backward(results, grads);
  for (const at::Tensor& each : leaves)
    if (each.is_floating_point()) results.push_back(each.grad());
  return results;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!at::equal(a[i], b[i])) return false;
  return true;
}

std::string worse_than_composition(const TensorFunction& op, const TensorFunction& composition,
                                   const std::vector<at::Tensor>& inputs) {
  const auto ours = outputs_and_gradients(op, inputs);
  const auto theirs = outputs_and_gradients(composition, inputs);
  const auto exact = outputs_and_gradients(composition, in_fp64(inputs));
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (!ours.at(i).defined() || ours[i].sizes() != theirs[i].sizes() || ours[i].dtype() != theirs[i].dtype())
      return cat("result ", i, ": another shape or dtype");
    const double allowed =
        std::max(2 * error(theirs[i], exact[i]),
                 unavoidable_error(computed_dtype(ours[i].scalar_type(), inputs), magnitude(exact[i])));
    const double actual = error(ours[i], exact[i]);
    if (!(actual <= allowed)) return cat("result ", i, ": error ", actual, ", allowed ", allowed);
  }
  return same_bits(ours, outputs_and_gradients(op, inputs)) ? "" : "a second run gives other bits";
}

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

bool fits_into_memory(const std::function<void()>& body) {
  try {
    body();
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
}

}  // namespace d9d::testing
