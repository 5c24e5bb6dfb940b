#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/common/simd.h"
#include "d9d/kernels/rotary/rotary_impl.h"

namespace d9d::kernels::detail {
namespace {

// The heads of one token: [num_heads, head_dim], read with a stride, written contiguously.
struct Heads {
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;
  std::int64_t head_stride = 0;
};

template <class T, class A = typename Lanes<T>::Accumulator>
D9D_SIMD_CLONES void rotate_half(const T* x, const A* cos, const A* sin, T* out, const Heads& heads, bool transposed) {
  const std::int64_t half = heads.rotary_dim / 2;
  for (std::int64_t head = 0; head < heads.num_heads; ++head, x += heads.head_stride, out += heads.head_dim) {
    for (std::int64_t i = 0; i < half; i += Lanes<T>::kWidth) {
      const std::int64_t count = std::min(Lanes<T>::kWidth, half - i);
      typename Lanes<T>::Vec a, b, cos_a, cos_b, sin_a, sin_b;
      load(x + i, count, a);
      load(x + half + i, count, b);
      load(cos + i, count, cos_a);
      load(cos + half + i, count, cos_b);
      load(sin + i, count, sin_a);
      load(sin + half + i, count, sin_b);
      store<T>(transposed ? a * cos_a + b * sin_b : a * cos_a - b * sin_a, count, out + i);
      store<T>(transposed ? b * cos_b - a * sin_a : b * cos_b + a * sin_b, count, out + half + i);
    }
    std::copy(x + heads.rotary_dim, x + heads.head_dim, out + heads.rotary_dim);
  }
}

template <class T, class A = typename Lanes<T>::Accumulator>
D9D_SIMD_CLONES void rotate_interleaved(const T* x, const A* cos, const A* sin, T* out, const Heads& heads,
                                        bool transposed) {
  for (std::int64_t head = 0; head < heads.num_heads; ++head, x += heads.head_stride, out += heads.head_dim) {
    for (std::int64_t i = 0; i < heads.rotary_dim; i += 2) {
      const A x0 = static_cast<A>(x[i]);
      const A x1 = static_cast<A>(x[i + 1]);
      const A turned0 = transposed ? x1 * sin[i + 1] : -x1 * sin[i];
      const A turned1 = transposed ? -x0 * sin[i] : x0 * sin[i + 1];
      out[i] = static_cast<T>(x0 * cos[i] + turned0);
      out[i + 1] = static_cast<T>(x1 * cos[i + 1] + turned1);
    }
    std::copy(x + heads.rotary_dim, x + heads.head_dim, out + heads.rotary_dim);
  }
}

}  // namespace

at::Tensor rotate_cpu(const at::Tensor& strided, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style,
                      RotaryPass pass) {
  const at::Tensor x = strided.stride(3) == 1 ? strided : strided.contiguous();
  at::Tensor result = at::empty(x.sizes(), x.options());
  const Heads heads{
      .num_heads = x.size(2), .head_dim = x.size(3), .rotary_dim = cos.size(2), .head_stride = x.stride(2)};
  const std::int64_t num_positions = x.size(1);
  const std::int64_t num_table_rows = cos.size(0) * cos.size(1);
  const std::int64_t row_size = heads.num_heads * heads.head_dim;
  const std::int64_t rows_per_task = 1 + kElementsPerTask / std::max<std::int64_t>(1, row_size);
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "apply_rotary", [&] {
    using A = Lanes<scalar_t>::Accumulator;
    const auto rotate = style == RotaryStyle::kHalf ? rotate_half<scalar_t, A> : rotate_interleaved<scalar_t, A>;
    const auto* x_data = x.const_data_ptr<scalar_t>();
    const auto* cos_data = cos.const_data_ptr<A>();
    const auto* sin_data = sin.const_data_ptr<A>();
    auto* out = result.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.size(0) * num_positions, rows_per_task, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t offset = row / num_positions * x.stride(0) + row % num_positions * x.stride(1);
        const std::int64_t table = row % num_table_rows * heads.rotary_dim;
        rotate(x_data + offset, cos_data + table, sin_data + table, out + row * row_size, heads,
               pass == RotaryPass::kBackward);
      }
    });
  });
  return result;
}

}  // namespace d9d::kernels::detail
