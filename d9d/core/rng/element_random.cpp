#include "d9d/core/rng/element_random.h"

#include <cmath>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/cuda_runtime.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/core/rng/element_random_kernel.h"

namespace d9d {
namespace {

constexpr std::int64_t kElementsPerTask = 1 << 14;

// Returns the global index of the first element of local row `row`, in the row-major order of all dims but the last.
std::int64_t row_start(const ElementWindow& window, at::IntArrayRef local_shape, std::int64_t row) {
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (std::int64_t dim = std::ssize(window.global_shape) - 1; dim >= 0; --dim) {
    const bool is_last = dim == std::ssize(window.global_shape) - 1;
    const std::int64_t coordinate = is_last ? 0 : row % local_shape[dim];
    if (!is_last) row /= local_shape[dim];
    index += (window.start[dim] + coordinate) * stride;
    stride *= window.global_shape[dim];
  }
  return index;
}

// Calls value(words) for each element and stores the result.
template <class Value>
void fill(const at::Tensor& local, const ElementWindow& window, RandomStream stream, const Value& value) {
  D9D_ASSERT(window.global_shape.size() == static_cast<std::size_t>(local.dim()), "window of another rank");
  if (local.numel() == 0) return;
  const at::Tensor host = local.device().is_cpu() && local.is_contiguous()
                              ? local
                              : at::empty(local.sizes(), local.options().device(at::kCPU));
  const std::int64_t row_size = host.dim() == 0 ? 1 : host.size(-1);
  const std::int64_t num_rows = host.numel() / row_size;
  const std::int64_t grain = std::max<std::int64_t>(1, kElementsPerTask / row_size);
  AT_DISPATCH_FLOATING_TYPES_AND3(at::kBool, at::kBFloat16, at::kHalf, host.scalar_type(), "fill_random", [&] {
    scalar_t* const out = host.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, num_rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t first = row_start(window, host.sizes(), row);
        for (std::int64_t i = 0; i < row_size; ++i) {
          const PhiloxCounter counter{.low = static_cast<std::uint64_t>(first + i), .high = stream.step};
          out[row * row_size + i] = static_cast<scalar_t>(value(philox4x32(counter, stream.key)));
        }
      }
    });
  });
  if (!host.is_same(local)) local.copy_(host);
}

// Returns true if the kernel filled the tensor: it handles floating numbers and masks, on a GPU that it is compiled
// for.
bool fill_on_device(const at::Tensor& local, const ElementWindow& window, RandomStream stream, detail::RandomKind kind,
                    double first, double second) {
  const at::ScalarType dtype = local.scalar_type();
  const auto known = find_dtype(dtype);
  const bool is_mask = kind == detail::RandomKind::kBernoulli;
  if (!local.is_cuda() || local.dim() > detail::FillRandomArgs::kMaxDims ||
      (is_mask ? dtype != at::kBool : !known.has_value()) || !is_built_with_cuda() || !is_hopper(local.device())) {
    return false;
  }
  D9D_ASSERT(window.global_shape.size() == static_cast<std::size_t>(local.dim()), "window of another rank");
  if (!local.is_contiguous()) {  // such as some positions of several sequences
    const at::Tensor values = at::empty(local.sizes(), local.options());
    if (!fill_on_device(values, window, stream, kind, first, second)) return false;
    local.copy_(values);
    return true;
  }
  detail::FillRandomArgs args{.out = local.mutable_data_ptr(),
                              .dtype = known.value_or(Dtype::kFloat32),
                              .kind = kind,
                              .first = first,
                              .second = second,
                              .num_dims = static_cast<int>(local.dim()),
                              .numel = local.numel(),
                              .key = stream.key,
                              .step = stream.step};
  for (int dim = 0; dim < args.num_dims; ++dim) {
    args.sizes[dim] = local.size(dim);
    args.starts[dim] = window.start[static_cast<std::size_t>(dim)];
    args.global_sizes[dim] = window.global_shape[static_cast<std::size_t>(dim)];
  }
  const c10::DeviceGuard guard(local.device());
  detail::launch_fill_random(args, current_cuda_stream(local.device()));
  return true;
}

}  // namespace

ElementWindow whole_window(const at::Tensor& tensor) {
  return {.global_shape = tensor.sizes().vec(), .start = std::vector<std::int64_t>(tensor.dim(), 0)};
}

void fill_uniform(const at::Tensor& local, const ElementWindow& window, RandomStream stream, double low, double high) {
  if (fill_on_device(local, window, stream, detail::RandomKind::kUniform, low, high)) return;
  fill(local, window, stream,
       [=](const PhiloxWords& words) { return low + (high - low) * uniform_double(words[0], words[1]); });
}

void fill_normal(const at::Tensor& local, const ElementWindow& window, RandomStream stream, double mean, double std) {
  if (fill_on_device(local, window, stream, detail::RandomKind::kNormal, mean, std)) return;
  fill(local, window, stream, [=](const PhiloxWords& words) {  // Box-Muller; 1 - u is in (0, 1]
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform_double(words[0], words[1])));
    return mean + std * radius * std::cos(2.0 * std::numbers::pi * uniform_double(words[2], words[3]));
  });
}

void fill_bernoulli(const at::Tensor& local, const ElementWindow& window, RandomStream stream,
                    double keep_probability) {
  if (fill_on_device(local, window, stream, detail::RandomKind::kBernoulli, keep_probability, 0)) return;
  fill(local, window, stream,
       [=](const PhiloxWords& words) { return uniform_double(words[0], words[1]) < keep_probability ? 1.0 : 0.0; });
}

}  // namespace d9d
