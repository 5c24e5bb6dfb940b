#include "d9d/core/dtensor/parameter.h"

#include <algorithm>
#include <functional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/held_parts.h"

namespace d9d {
namespace {

at::Tensor make_leaf(at::IntArrayRef shape, at::TensorOptions options, bool requires_grad) {
  return at::empty(shape, options).set_requires_grad(requires_grad);
}

void check_shape(at::IntArrayRef expected, at::IntArrayRef got) {
  D9D_CHECK(expected == got, StateError, "[core::parameter] expected values of shape ", expected, ", got ", got, ".");
}

// Cuts a range of the row-major flattening of a box of `sizes` into boxes, and calls visit(position in the flattening,
// box) for each, in order. A range may begin and end in the middle of rows.
void for_each_box(const std::vector<std::int64_t>& sizes, FlatRange range,
                  const std::function<void(std::int64_t begin, const LocalBox& box)>& visit) {
  if (range.numel() <= 0) return;
  LocalBox box{.start = std::vector<std::int64_t>(sizes.size()), .sizes = sizes};
  // Fixes one index in each dim, outermost first, until the rest of the range consists of whole rows of the inner dims.
  const auto cut = [&](const auto& self, std::size_t dim, std::int64_t position, FlatRange rest) -> void {
    if (dim == sizes.size()) return visit(position, box);
    const std::int64_t row = c10::multiply_integers(sizes.begin() + static_cast<std::ptrdiff_t>(dim) + 1, sizes.end());
    while (rest.numel() > 0) {
      box.start[dim] = rest.begin / row;
      const std::int64_t within = rest.begin % row;
      if (within == 0 && rest.numel() >= row) {
        box.sizes[dim] = rest.numel() / row;
        visit(position, box);
        position += box.sizes[dim] * row;
        rest.begin += box.sizes[dim] * row;
      } else {
        const std::int64_t count = std::min(row - within, rest.numel());
        box.sizes[dim] = 1;
        self(self, dim + 1, position, {within, within + count});
        position += count;
        rest.begin += count;
      }
    }
    box.start[dim] = 0;
    box.sizes[dim] = sizes[dim];
  };
  cut(cut, 0, range.begin, range);
}

}  // namespace

Parameter::Parameter(ParameterSpec spec)
    : spec_(std::move(spec)), local_(make_leaf(spec_.shape, at::TensorOptions(at::kMeta).dtype(at::kFloat), true)) {
  set_init(spec_.init);
}

void Parameter::set_init(Initializer init) {
  D9D_CHECK(init != nullptr, ConfigError, "[core::parameter] expected an initializer, got none. Name one of init::.");
  spec_.init = std::move(init);
}

DTensor Parameter::dtensor() const {
  return {.local = stored().detach(), .mesh = mesh_, .placements = placements_, .global_shape = spec_.shape};
}

std::int64_t Parameter::global_numel() const { return c10::multiply_integers(spec_.shape); }

void Parameter::place(const DeviceMesh& mesh, std::string_view axis, Placement placement,
                      Placement gradient_placement) {
  D9D_CHECK(local_.is_meta(), StateError,
            "[core::parameter] expected a layout before storage is allocated. Parallelise before materialize().");
  if (mesh_.axes().empty()) {
    mesh_ = mesh;
    placements_.assign(mesh.axes().size(), Replicate{});
    gradient_placements_ = placements_;
  }
  D9D_CHECK(mesh_ == mesh, ConfigError, "[core::parameter] expected axes of mesh '", mesh_.name(),
            "', on which the parameter lies already, got mesh '", mesh.name(), "'. Take the axes of one domain.");
  D9D_CHECK(!std::holds_alternative<Shard>(placement) || !has_flat_shard(placements_), ConfigError,
            "[core::parameter] expected ", to_string(placement), " over axis '", axis,
            "' before the parameter joined a flat group. Apply tensor and expert parallelism before FSDP.");
  const std::size_t index = mesh_.axis_index(axis);
  placements_[index] = placement;
  gradient_placements_[index] = gradient_placement;
  const at::NoGradGuard no_grad;
  local_.set_data(at::empty(local_box(spec_.shape, mesh_, placements_).sizes, local_.options()));
}

void Parameter::set_stored_dtype(at::ScalarType dtype) {
  D9D_CHECK(local_.is_meta() && !has_flat_shard(placements_), StateError, "[core::parameter] expected a stored dtype ",
            "before storage is allocated and before the parameter is sharded, got ", dtype,
            " afterwards. Call keep_parameters_in() first.");
  stored_dtype_ = dtype;
}

bool Parameter::requires_grad() const { return local_.requires_grad(); }
void Parameter::set_requires_grad(bool requires_grad) { local_.set_requires_grad(requires_grad); }

void Parameter::to(at::ScalarType dtype) {
  if (local_.scalar_type() == dtype) return;
  D9D_CHECK(!stored_.defined(), StateError, "[core::parameter] expected a conversion to ", dtype,
            " before materialize() for a parameter that is sharded or stored in another dtype, got one after it.");
  const at::NoGradGuard no_grad;
  local_.mutable_grad() = at::Tensor();
  local_.set_data(local_.to(dtype));  // remains the same object, since optimisers and adopted modules hold it
}

void Parameter::materialize(at::Device device) {
  is_initialized_ = false;
  if (has_flat_shard(placements_)) return;
  local_ = make_leaf(local_.sizes(), local_.options().device(device), requires_grad());
  if (stored_dtype_) stored_ = at::empty(local_.sizes(), local_.options().dtype(*stored_dtype_));
}

void Parameter::reset(RandomStream stream) {
  const at::NoGradGuard no_grad;
  const LocalBox box = local_box(spec_.shape, mesh_, placements_);
  if (!has_flat_shard(placements_)) {
    spec_.init(stored(), {.global_shape = spec_.shape, .start = box.start}, stream);
  } else {
    const FlatRange range = flat_range(box.numel(), mesh_, placements_);
    for_each_box(box.sizes, range, [&](std::int64_t begin, const LocalBox& part) {
      ElementWindow window{.global_shape = spec_.shape, .start = box.start};
      for (std::size_t dim = 0; dim < part.start.size(); ++dim) window.start[dim] += part.start[dim];
      spec_.init(stored_.narrow(0, begin - range.begin, part.numel()).view(part.sizes), window, stream);
    });
  }
  is_initialized_ = true;
}

void Parameter::replace_local(const at::Tensor& leaf) {
  check_shape(local_.sizes(), leaf.sizes());
  D9D_CHECK(leaf.is_leaf(), StateError, "[core::parameter] expected a leaf tensor, got the result of an operation.");
  D9D_CHECK(leaf.scalar_type() == local_.scalar_type(), StateError, "[core::parameter] expected a leaf of ",
            local_.scalar_type(), ", got ", leaf.scalar_type(), ".");
  const bool needs_grad = requires_grad();
  local_ = leaf;
  local_.set_requires_grad(needs_grad);
}

void Parameter::attach_flat(const at::Tensor& view, const at::Tensor& slice) {
  check_shape(local_.sizes(), view.sizes());
  const at::NoGradGuard no_grad;
  if (local_.is_meta()) {
    local_ = view.variable_data().set_requires_grad(requires_grad());
  } else {
    local_.set_data(view);  // remains the same object, since adopted modules hold it
  }
  stored_ = slice;
}

void Parameter::copy_from(const at::Tensor& values) {
  check_shape(spec_.shape, values.sizes());
  const at::NoGradGuard no_grad;
  const LocalBox whole = whole_box(spec_.shape);
  for (const HeldPart& part : held_parts(dtensor())) part.values.copy_(view_of(values, whole, part.box));
  is_initialized_ = true;
}

void update_local(const std::vector<ParameterPtr>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> locals, stored;
  for (const ParameterPtr& parameter : parameters) {
    if (!parameter->stored_dtype() || has_flat_shard(parameter->placements())) continue;
    locals.push_back(parameter->local());
    stored.push_back(parameter->stored());
  }
  if (!locals.empty()) at::_foreach_copy_(locals, stored);
}

}  // namespace d9d
