#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/common/simd.h"
#include "d9d/kernels/rms_norm/rms_norm_impl.h"

namespace d9d::kernels::detail {
namespace {

// Rows are summed into at most this many partial weight gradients. The number of partials depends on the shape alone
// and not on the number of threads; so does the order of additions.
constexpr std::int64_t kMaxPartials = 32;
constexpr std::int64_t kMinRowsPerPartial = 16;

std::int64_t rows_per_task(std::int64_t num_columns) {
  return std::max<std::int64_t>(1, kElementsPerTask / num_columns);
}

template <class T, class A = typename Lanes<T>::Accumulator>
D9D_SIMD_CLONES void forward_rows(const T* x, const A* scale, T* out, A* inv_rms, std::int64_t num_rows,
                                  std::int64_t num_columns, A eps) {
  using Vec = typename Lanes<T>::Vec;
  constexpr std::int64_t kWidth = Lanes<T>::kWidth;
  for (std::int64_t row = 0; row < num_rows; ++row, x += num_columns, out += num_columns) {
    Vec squares{};
    for (std::int64_t i = 0; i < num_columns; i += kWidth) {
      Vec value;
      load(x + i, std::min(kWidth, num_columns - i), value);
      squares += value * value;
    }
    const A inv = A{1} / std::sqrt(sum_of_lanes(squares) / static_cast<A>(num_columns) + eps);
    inv_rms[row] = inv;
    for (std::int64_t i = 0; i < num_columns; i += kWidth) {
      const std::int64_t count = std::min(kWidth, num_columns - i);
      Vec value, factor;
      load(x + i, count, value);
      load(scale + i, count, factor);
      store<T>(value * inv * factor, count, out + i);
    }
  }
}

template <class T, class A = typename Lanes<T>::Accumulator>
D9D_SIMD_CLONES void backward_x_rows(const T* grad_out, const T* x, const A* scale, const A* inv_rms, T* grad_x,
                                     std::int64_t num_rows, std::int64_t num_columns) {
  using Vec = typename Lanes<T>::Vec;
  constexpr std::int64_t kWidth = Lanes<T>::kWidth;
  for (std::int64_t row = 0; row < num_rows; ++row, grad_out += num_columns, x += num_columns, grad_x += num_columns) {
    const A inv = inv_rms[row];
    Vec products{};
    for (std::int64_t i = 0; i < num_columns; i += kWidth) {
      const std::int64_t count = std::min(kWidth, num_columns - i);
      Vec grad, value, factor;
      load(grad_out + i, count, grad);
      load(x + i, count, value);
      load(scale + i, count, factor);
      products += grad * factor * value;
    }
    const A projection = sum_of_lanes(products) * inv * inv / static_cast<A>(num_columns);
    for (std::int64_t i = 0; i < num_columns; i += kWidth) {
      const std::int64_t count = std::min(kWidth, num_columns - i);
      Vec grad, value, factor;
      load(grad_out + i, count, grad);
      load(x + i, count, value);
      load(scale + i, count, factor);
      store<T>((grad * factor - value * projection) * inv, count, grad_x + i);
    }
  }
}

template <class T, class A = typename Lanes<T>::Accumulator>
D9D_SIMD_CLONES void backward_scale_rows(const T* grad_out, const T* x, const A* inv_rms, A* grad_scale,
                                         std::int64_t num_rows, std::int64_t num_columns) {
  using Vec = typename Lanes<T>::Vec;
  constexpr std::int64_t kWidth = Lanes<T>::kWidth;
  for (std::int64_t row = 0; row < num_rows; ++row, grad_out += num_columns, x += num_columns) {
    for (std::int64_t i = 0; i < num_columns; i += kWidth) {
      const std::int64_t count = std::min(kWidth, num_columns - i);
      Vec grad, value, sum;
      load(grad_out + i, count, grad);
      load(x + i, count, value);
      load(grad_scale + i, count, sum);
      store<A>(sum + grad * value * inv_rms[row], count, grad_scale + i);
    }
  }
}

template <class T, class A = typename Lanes<T>::Accumulator>
at::Tensor backward_scale(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& inv_rms) {
  const std::int64_t num_rows = x.size(0);
  const std::int64_t num_columns = x.size(1);
  const std::int64_t num_partials = std::clamp(num_rows / kMinRowsPerPartial, std::int64_t{1}, kMaxPartials);
  const at::Tensor partials = at::zeros({num_partials, num_columns}, inv_rms.options());
  at::parallel_for(0, num_partials, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t partial = begin; partial < end; ++partial) {
      const std::int64_t first = num_rows * partial / num_partials;
      const std::int64_t last = num_rows * (partial + 1) / num_partials;
      backward_scale_rows<T>(grad_out.const_data_ptr<T>() + first * num_columns,
                             x.const_data_ptr<T>() + first * num_columns, inv_rms.const_data_ptr<A>() + first,
                             partials.mutable_data_ptr<A>() + partial * num_columns, last - first, num_columns);
    }
  });
  return partials.sum(0);
}

}  // namespace

RmsNormForward rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& scale, double eps) {
  const std::int64_t num_columns = x.size(1);
  RmsNormForward result{.out = at::empty_like(x), .inv_rms = at::empty({x.size(0)}, scale.options())};
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "rms_norm_forward", [&] {
    using A = Lanes<scalar_t>::Accumulator;
    const auto* x_data = x.const_data_ptr<scalar_t>();
    const auto* scale_data = scale.const_data_ptr<A>();
    auto* out = result.out.mutable_data_ptr<scalar_t>();
    auto* inv_rms = result.inv_rms.mutable_data_ptr<A>();
    at::parallel_for(0, x.size(0), rows_per_task(num_columns), [&](std::int64_t begin, std::int64_t end) {
      forward_rows(x_data + begin * num_columns, scale_data, out + begin * num_columns, inv_rms + begin, end - begin,
                   num_columns, static_cast<A>(eps));
    });
  });
  return result;
}

RmsNormBackward rms_norm_backward_cpu(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& scale,
                                      const at::Tensor& inv_rms, RmsNormWanted wanted) {
  const std::int64_t num_columns = x.size(1);
  RmsNormBackward result;
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "rms_norm_backward", [&] {
    using A = Lanes<scalar_t>::Accumulator;
    if (wanted.scale) result.scale = backward_scale<scalar_t>(grad_out, x, inv_rms);
    if (!wanted.x) return;
    result.x = at::empty_like(x);
    const auto* grad_data = grad_out.const_data_ptr<scalar_t>();
    const auto* x_data = x.const_data_ptr<scalar_t>();
    const auto* scale_data = scale.const_data_ptr<A>();
    const auto* inv_data = inv_rms.const_data_ptr<A>();
    auto* grad_x = result.x.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.size(0), rows_per_task(num_columns), [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t offset = begin * num_columns;
      backward_x_rows(grad_data + offset, x_data + offset, scale_data, inv_data + begin, grad_x + offset, end - begin,
                      num_columns);
    });
  });
  return result;
}

}  // namespace d9d::kernels::detail
