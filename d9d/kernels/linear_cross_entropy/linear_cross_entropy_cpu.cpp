#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/common/simd.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_impl.h"

namespace d9d::kernels::detail {
namespace {

std::int64_t rows_per_task(const at::Tensor& logits) { return 1 + kElementsPerTask / (1 + logits.size(1)); }

// As load(), but lanes from `count` on become -inf, which changes neither a maximum nor a sum of exponentials.
template <class T>
D9D_ALWAYS_INLINE void load_logits(const T* from, std::int64_t count, typename Lanes<T>::Vec& to) {
  load(from, count, to);
  for (std::int64_t lane = count; lane < Lanes<T>::kWidth; ++lane) to[lane] = -std::numeric_limits<T>::infinity();
}

template <class T>
D9D_SIMD_CLONES T logsumexp_row(const T* logits, std::int64_t size) {
  using Vec = typename Lanes<T>::Vec;
  constexpr std::int64_t kWidth = Lanes<T>::kWidth;
  Vec maxima = Vec{} - std::numeric_limits<T>::infinity();
  for (std::int64_t i = 0; i < size; i += kWidth) {
    Vec z;
    load_logits(logits + i, std::min(kWidth, size - i), z);
    maxima = z > maxima ? z : maxima;
  }
  T max = maxima[0];
  for (std::int64_t lane = 1; lane < kWidth; ++lane) max = std::max(max, maxima[lane]);
  const T offset = std::max(max, std::numeric_limits<T>::lowest());  // a row of -inf has the value -inf, not NaN
  Vec sums{};
  for (std::int64_t i = 0; i < size; i += kWidth) {
    Vec z;
    load_logits(logits + i, std::min(kWidth, size - i), z);
    z -= offset;
    exp_in_place(z);
    sums += z;
  }
  return offset + std::log(sum_of_lanes(sums));
}

template <class T>
D9D_SIMD_CLONES void scaled_softmax_row(T* logits, T lse, T factor, std::int64_t size) {
  for (std::int64_t i = 0; i < size; i += Lanes<T>::kWidth) {
    const std::int64_t count = std::min(Lanes<T>::kWidth, size - i);
    typename Lanes<T>::Vec z;
    load(logits + i, count, z);
    z -= lse;
    exp_in_place(z);
    store<T>(z * factor, count, logits + i);
  }
}

}  // namespace

at::Tensor logsumexp_rows_cpu(const at::Tensor& logits) {
  at::Tensor result = at::empty({logits.size(0)}, logits.options());
  const std::int64_t size = logits.size(1);
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "logsumexp_rows", [&] {
    const auto* rows = logits.const_data_ptr<scalar_t>();
    auto* out = result.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, logits.size(0), rows_per_task(logits), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) out[row] = logsumexp_row(rows + row * size, size);
    });
  });
  return result;
}

void scaled_softmax_rows_cpu(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& factor) {
  const std::int64_t size = logits.size(1);
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "scaled_softmax_rows", [&] {
    auto* rows = logits.mutable_data_ptr<scalar_t>();
    const auto* lse_data = lse.const_data_ptr<scalar_t>();
    const auto* factor_data = factor.const_data_ptr<scalar_t>();
    at::parallel_for(0, logits.size(0), rows_per_task(logits), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        scaled_softmax_row(rows + row * size, lse_data[row], factor_data[row], size);
    });
  });
}

}  // namespace d9d::kernels::detail
