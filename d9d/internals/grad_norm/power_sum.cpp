#include "d9d/internals/grad_norm/power_sum.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "d9d/base/rounding.h"
#include "d9d/kernels/common/simd.h"

namespace d9d::detail {
namespace {

using kernels::detail::Lanes;
using kernels::detail::load;

enum class Power { kOne, kTwo, kThree, kInfinity };

constexpr std::int64_t kBlockSize = 1024;  // elements that are summed in the accumulator dtype

// Returns the sum of two magnitudes, or for an infinite order the larger one; NaN counts as the largest.
template <Power power>
double combine(double a, double b) {
  if constexpr (power == Power::kInfinity) {
    return b > a || b != b ? b : a;
  } else {
    return a + b;
  }
}

template <class T, Power power>
D9D_SIMD_CLONES double block_power_sum(const T* x, std::int64_t size) {
  using Vec = typename Lanes<T>::Vec;
  constexpr std::int64_t kWidth = Lanes<T>::kWidth;
  Vec result{};
  for (std::int64_t i = 0; i < size; i += kWidth) {
    Vec value;
    load(x + i, std::min(kWidth, size - i), value);
    const Vec magnitude = value < 0 ? -value : value;
    if constexpr (power == Power::kOne) result += magnitude;
    if constexpr (power == Power::kTwo) result += magnitude * magnitude;
    if constexpr (power == Power::kThree) result += magnitude * magnitude * magnitude;
    if constexpr (power == Power::kInfinity)
      result = magnitude > result ? magnitude : (magnitude != magnitude ? magnitude : result);
  }
  double total = 0;
  for (std::int64_t lane = 0; lane < kWidth; ++lane) total = combine<power>(total, result[lane]);
  return total;
}

template <class T, Power power>
double power_sum(const at::Tensor& x) {
  const auto* data = x.const_data_ptr<T>();
  const std::int64_t size = x.numel();
  std::vector<double> blocks(static_cast<std::size_t>(divide_up(size, kBlockSize)));
  at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block)
      blocks[static_cast<std::size_t>(block)] =
          block_power_sum<T, power>(data + block * kBlockSize, std::min(kBlockSize, size - block * kBlockSize));
  });
  double total = 0;
  for (const double block : blocks) total = combine<power>(total, block);
  return total;
}

}  // namespace

double power_sum_cpu(const at::Tensor& x, double order) {
  return AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "power_sum", [&] {
    if (order == 1) return power_sum<scalar_t, Power::kOne>(x);
    if (order == 2) return power_sum<scalar_t, Power::kTwo>(x);
    if (order == 3) return power_sum<scalar_t, Power::kThree>(x);
    return power_sum<scalar_t, Power::kInfinity>(x);
  });
}

}  // namespace d9d::detail
