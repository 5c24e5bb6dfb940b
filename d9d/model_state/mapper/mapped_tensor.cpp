#include "d9d/model_state/mapper/mapped_tensor.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/box_intersection.h"
#include "d9d/core/dtensor/held_parts.h"

namespace d9d {
namespace {

using Shape = std::vector<std::int64_t>;

std::size_t dim_of(const MappedTensor& x, std::int64_t dim, std::int64_t num_dims) {
  D9D_CHECK(dim >= -num_dims && dim < num_dims, StateError, "[model_state::mapper] expected a dim in [", -num_dims,
            ", ", num_dims, ") of a tensor of shape ", at::IntArrayRef(x.spec.shape), ", got ", dim, ".");
  return static_cast<std::size_t>(dim < 0 ? dim + num_dims : dim);
}
std::size_t dim_of(const MappedTensor& x, std::int64_t dim) { return dim_of(x, dim, std::ssize(x.spec.shape)); }

void check_whole(const MappedTensor& x) {
  D9D_CHECK(x.spec.mesh.axes().empty(), StateError,
            "[model_state::mapper] expected a whole tensor, got one that is distributed over mesh '",
            x.spec.mesh.name(), "'. Gather it first (mapper::gather_full_tensor).");
}

// Calls change(vector of a value for each dim) for the shape and all boxes of x.
template <class Change>
MappedTensor with_dims(MappedTensor x, const Change& change, std::int64_t new_size, std::int64_t new_start) {
  check_whole(x);
  change(x.spec.shape, new_size);
  for (TensorPart& part : x.parts) {
    change(part.target.start, new_start);
    change(part.target.sizes, new_size);
    change(part.dims, std::int64_t{-1});
  }
  return x;
}

}  // namespace

MappedTensor whole_tensor(const std::string& name, StateSpec spec) {
  MappedTensor x{.spec = std::move(spec), .parts = {}};
  const LocalBox box = whole_box(x.spec.shape);
  if (box.numel() == 0 && x.spec.mesh.axes().empty()) return x;
  Shape dims(x.spec.shape.size());
  std::iota(dims.begin(), dims.end(), 0);
  x.parts.push_back({.input = name, .source = box, .target = box, .dims = std::move(dims)});
  return x;
}

MappedTensor transposed(const MappedTensor& x, std::int64_t dim0, std::int64_t dim1) {
  const std::size_t a = dim_of(x, dim0), b = dim_of(x, dim1);
  return with_dims(
      x, [&](Shape& dims, std::int64_t) { std::swap(dims[a], dims[b]); }, 0, 0);
}

MappedTensor unsqueezed(const MappedTensor& x, std::int64_t dim) {
  const auto at = static_cast<std::ptrdiff_t>(dim_of(x, dim, std::ssize(x.spec.shape) + 1));
  return with_dims(
      x, [&](Shape& dims, std::int64_t value) { dims.insert(dims.begin() + at, value); }, 1, 0);
}

MappedTensor squeezed(const MappedTensor& x, std::int64_t dim) {
  const std::size_t at = dim_of(x, dim);
  D9D_CHECK(x.spec.shape[at] == 1, StateError, "[model_state::mapper] expected dim ", dim,
            " to have size 1, got a tensor of shape ", at::IntArrayRef(x.spec.shape), ".");
  return with_dims(
      x, [&](Shape& dims, std::int64_t) { dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(at)); }, 0, 0);
}

MappedTensor narrowed(const MappedTensor& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  check_whole(x);
  const std::size_t at = dim_of(x, dim);
  D9D_CHECK(start >= 0 && length >= 0 && start + length <= x.spec.shape[at], StateError,
            "[model_state::mapper] expected elements within dim ", dim, " of a tensor of shape ",
            at::IntArrayRef(x.spec.shape), ", got ", start, " to ", start + length, ".");
  MappedTensor result{.spec = x.spec, .parts = {}};
  result.spec.shape[at] = length;
  LocalBox kept = whole_box(result.spec.shape);
  kept.start[at] = start;
  for (const TensorPart& part : x.parts) {
    // Checked before copying the part: with thousands of stacked tensors, each output takes one of them.
    const std::int64_t begin = part.target.start[at];
    if (begin >= start + length || begin + part.target.sizes[at] <= start) continue;
    std::optional<TensorPart> inner = part_within(part, kept);
    if (!inner) continue;
    inner->target.start[at] -= start;
    result.parts.push_back(*std::move(inner));
  }
  return result;
}

MappedTensor concatenated(const std::vector<MappedTensor>& tensors, std::int64_t dim) {
  D9D_CHECK(!tensors.empty(), StateError, "[model_state::mapper] expected tensors to join, got none.");
  const std::size_t at = dim_of(tensors[0], dim);
  MappedTensor result{.spec = tensors[0].spec, .parts = {}};
  result.spec.shape[at] = 0;
  for (const MappedTensor& x : tensors) {
    check_whole(x);
    Shape expected = result.spec.shape;
    if (x.spec.shape.size() == expected.size()) expected[at] = x.spec.shape[at];
    D9D_CHECK(x.spec.shape == expected, StateError, "[model_state::mapper] expected tensors of equal shapes apart from",
              " dim ", dim, ", got ", at::IntArrayRef(tensors[0].spec.shape), " and ", at::IntArrayRef(x.spec.shape),
              ".");
    D9D_CHECK(x.spec.dtype == result.spec.dtype, StateError,
              "[model_state::mapper] expected tensors of one dtype, got ", result.spec.dtype, " and ", x.spec.dtype,
              ". Convert one of them (mapper::cast).");
    for (TensorPart part : x.parts) {
      part.target.start[at] += result.spec.shape[at];
      result.parts.push_back(std::move(part));
    }
    result.spec.shape[at] += x.spec.shape[at];
  }
  return result;
}

MappedTensor converted(const MappedTensor& x, at::ScalarType dtype) {
  check_whole(x);
  if (x.spec.dtype == dtype) return x;
  MappedTensor result = x;
  result.spec.dtype = dtype;
  for (TensorPart& part : result.parts) part.casts.push_back(dtype);
  return result;
}

std::int64_t size_of_dim(const MappedTensor& x, std::int64_t dim) { return x.spec.shape[dim_of(x, dim)]; }

std::optional<TensorPart> part_within(const TensorPart& part, const LocalBox& box) {
  const std::vector<BoxIntersection> common = intersections({part.target}, {box});
  if (common.empty()) return std::nullopt;
  TensorPart inner = part;
  inner.target = common[0].box;
  for (std::size_t d = 0; d < part.dims.size(); ++d) {
    if (part.dims[d] < 0) continue;
    const auto source_dim = static_cast<std::size_t>(part.dims[d]);
    inner.source.start[source_dim] += inner.target.start[d] - part.target.start[d];
    inner.source.sizes[source_dim] = inner.target.sizes[d];
  }
  return inner;
}

at::Tensor values_of(const TensorPart& part, const at::Tensor& source_values) {
  // The dims that the target has, in its order, then the others, of size 1.
  Shape order, unused;
  for (const std::int64_t dim : part.dims) {
    if (dim >= 0) order.push_back(dim);
  }
  const auto num_used = std::ssize(order);
  for (std::int64_t dim = 0; dim < source_values.dim(); ++dim) {
    if (std::ranges::find(part.dims, dim) == part.dims.end()) order.push_back(dim);
  }
  at::Tensor values = source_values.permute(order);
  while (values.dim() > num_used) values = values.select(-1, 0);
  for (std::size_t d = 0; d < part.dims.size(); ++d) {
    if (part.dims[d] < 0) values = values.unsqueeze(static_cast<std::int64_t>(d));
  }
  for (const at::ScalarType dtype : part.casts) values = values.to(dtype);
  return values;
}

at::Tensor in_source_order(const TensorPart& part, const at::Tensor& target_values) {
  at::Tensor values = target_values;
  for (std::size_t d = part.dims.size(); d-- > 0;) {
    if (part.dims[d] < 0) values = values.select(static_cast<std::int64_t>(d), 0);
  }
  Shape used;  // the input's dims, in their current order in `values`
  for (const std::int64_t dim : part.dims) {
    if (dim >= 0) used.push_back(dim);
  }
  Shape order(used.size());  // for each dim of the input, its position in `used`
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::int64_t at) { return used[static_cast<std::size_t>(at)]; });
  values = values.permute(order);
  for (std::int64_t dim = 0; dim < std::ssize(part.source.sizes); ++dim) {
    if (std::ranges::find(used, dim) == used.end()) values = values.unsqueeze(dim);
  }
  return values;
}

at::Tensor assembled(const MappedTensor& x, const std::function<at::Tensor(const TensorPart& part)>& source_values) {
  if (x.parts.size() == 1) return values_of(x.parts[0], source_values(x.parts[0]));
  at::Tensor result;
  for (const TensorPart& part : x.parts) {
    const at::Tensor values = values_of(part, source_values(part));
    if (!result.defined()) result = at::empty(x.spec.shape, values.options());
    view_of(result, whole_box(x.spec.shape), part.target).copy_(values);
  }
  return result.defined() ? result : at::empty(x.spec.shape, x.spec.dtype);
}

at::Tensor assembled_from_whole(const MappedTensor& x,
                                const std::function<at::Tensor(const std::string& input)>& find) {
  return assembled(x, [&](const TensorPart& part) {
    const at::Tensor input = find(part.input);
    return view_of(input, whole_box(input.sizes().vec()), part.source);
  });
}

}  // namespace d9d
