#include "d9d/internals/grad_norm/grad_norm.h"

#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/internals/grad_norm/power_sum.h"
#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/global_norm/global_norm.h"

namespace d9d {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_gradients(at::TensorList gradients) {
  for (const at::Tensor& grad : gradients) {
    D9D_CHECK(grad.defined() && grad.layout() == at::kStrided && grad.is_floating_point(), ConfigError,
              "[internals::global_grad_norm] expected defined, dense, floating gradients, got another. Pass only "
              "parameters that have a gradient.");
    D9D_CHECK(grad.device() == gradients.front().device(), ConfigError,
              "[internals::global_grad_norm] expected gradients on one device, got ", grad.device(), " and ",
              gradients.front().device(), ". Take one norm a device.");
  }
}

kernels::detail::NormOrder norm_order(double order) {
  using kernels::detail::NormOrder;
  if (order == kInfinity) return NormOrder::kInfinity;
  return order == 1 ? NormOrder::kOne : order == 2 ? NormOrder::kTwo : NormOrder::kThree;
}

// Returns the norm of one gradient: fp64, 0-dim.
at::Tensor norm_of(const at::Tensor& grad, double order) {
  if (kernels::detail::has_cpu_loops(grad)) {
    const double sum = detail::power_sum_cpu(grad.contiguous(), order);
    return at::scalar_tensor(order == kInfinity ? sum : std::pow(sum, 1 / order), at::kDouble);
  }
  if (grad.numel() == 0) return at::zeros({}, grad.options().dtype(at::kDouble));
  const at::ScalarType wide = at::toOpMathType(grad.scalar_type());
  return at::linalg_vector_norm(grad, order, {}, /*keepdim=*/false, wide).to(at::kDouble);
}

}  // namespace

at::Tensor global_grad_norm(at::TensorList gradients, double order) {
  D9D_CHECK(order == 1 || order == 2 || order == 3 || order == kInfinity, ConfigError,
            "[internals::global_grad_norm] expected order 1, 2, 3 or infinity, got ", order, ". The usual one is 2.");
  check_gradients(gradients);
  if (gradients.empty()) return at::zeros({}, at::kDouble);
  const at::NoGradGuard no_grad;
  if (kernels::detail::has_global_norm_kernel(gradients))
    return kernels::detail::global_norm_cuda(gradients, norm_order(order));
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (const at::Tensor& grad : gradients) norms.push_back(norm_of(grad, order));
  return at::linalg_vector_norm(at::stack(norms), order);
}

at::Tensor clip_coefficient(const at::Tensor& norm, double max_norm) {
  D9D_CHECK(max_norm > 0, ConfigError, "[internals::clip_coefficient] expected max_norm > 0, got ", max_norm,
            ". Leave clipping out to disable it.");
  return (max_norm / (norm + 1e-6)).clamp_max(1);
}

}  // namespace d9d
