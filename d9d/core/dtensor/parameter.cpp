#include "d9d/core/dtensor/parameter.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

at::Tensor make_leaf(at::IntArrayRef shape, at::TensorOptions options, bool requires_grad) {
  return at::empty(shape, options).set_requires_grad(requires_grad);
}

void check_shape(at::IntArrayRef expected, at::IntArrayRef got) {
  D9D_CHECK(expected == got, StateError, "[core::parameter] expected values of shape ", expected, ", got ", got, ".");
}

}  // namespace

Parameter::Parameter(ParameterSpec spec)
    : spec_(std::move(spec)), local_(make_leaf(spec_.shape, at::TensorOptions(at::kMeta).dtype(at::kFloat), true)) {
  D9D_CHECK(spec_.init != nullptr, ConfigError,
            "[core::parameter] expected an initializer, got none. Name one of init::.");
}

void Parameter::distribute(DeviceMesh mesh, Placements placements, Placements gradient_placements) {
  D9D_CHECK(local_.is_meta(), StateError,
            "[core::parameter] expected a layout before storage is allocated. Parallelise before materialize().");
  D9D_CHECK(placements.size() == mesh.axes().size() && gradient_placements.size() == mesh.axes().size(), ConfigError,
            "[core::parameter] expected one placement for each of ", mesh.axes().size(), " axes, got ",
            placements.size(), " and ", gradient_placements.size(), " for the gradient.");
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const MeshAxis& axis = mesh.axes()[i];
    D9D_CHECK(axis.size == 1, ConfigError, "[core::parameter] axis '", axis.name, "' has ", axis.size,
              " ranks: parameters over more than one rank are not built in this version.");
    D9D_CHECK(std::holds_alternative<Replicate>(placements[i]), ConfigError, "[core::parameter] ",
              to_string(placements[i]), " on axis '", axis.name, "' is not built in this version. Use replicate.");
  }
  mesh_ = std::move(mesh);
  placements_ = std::move(placements);
  gradient_placements_ = std::move(gradient_placements);
}

bool Parameter::requires_grad() const { return local_.requires_grad(); }
void Parameter::set_requires_grad(bool requires_grad) { local_.set_requires_grad(requires_grad); }

void Parameter::to(at::ScalarType dtype) {
  if (local_.scalar_type() == dtype) return;
  const at::NoGradGuard no_grad;
  local_.mutable_grad() = at::Tensor();
  local_.set_data(local_.to(dtype));  // the same object: optimisers and adopted modules hold it
}

void Parameter::materialize(at::Device device) {
  local_ = make_leaf(local_.sizes(), local_.options().device(device), requires_grad());
  is_initialized_ = false;
}

void Parameter::reset(RandomStream stream) {
  const at::NoGradGuard no_grad;
  spec_.init(local_, whole_window(local_), stream);
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

void Parameter::copy_from(const at::Tensor& values) {
  check_shape(local_.sizes(), values.sizes());
  const at::NoGradGuard no_grad;
  local_.copy_(values);
  is_initialized_ = true;
}

}  // namespace d9d
