#include "d9d/core/device/meta_operators.h"

#include <vector>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace d9d {
namespace {

at::Tensor meta_where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(self.sizes(), other.sizes()));
  return at::empty(sizes, condition.options().dtype(at::result_type(self, other)));
}

at::Tensor meta_index_select(const at::Tensor& self, std::int64_t dim, const at::Tensor& index) {
  std::vector<std::int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<std::size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return at::empty(sizes, self.options());
}

at::Tensor meta_embedding_gradient(const at::Tensor& grad, const at::Tensor& /*indices*/, std::int64_t num_weights,
                                   std::int64_t /*padding_idx*/, bool /*scale_grad_by_freq*/) {
  return at::empty({num_weights, grad.size(-1)}, grad.options());
}

at::Tensor meta_searchsorted(const at::Tensor& /*sorted*/, const at::Tensor& values, bool out_int32, bool /*right*/,
                             std::optional<c10::string_view> /*side*/, const std::optional<at::Tensor>& /*sorter*/) {
  return at::empty(values.sizes(), values.options().dtype(out_int32 ? at::kInt : at::kLong));
}

at::Tensor& meta_mm_out(const at::Tensor& /*a*/, const at::Tensor& /*b*/, at::ScalarType /*dtype*/, at::Tensor& out) {
  return out;
}
at::Tensor& meta_addmm_out(const at::Tensor& /*self*/, const at::Tensor& /*a*/, const at::Tensor& /*b*/,
                           at::ScalarType /*dtype*/, const at::Scalar& /*beta*/, const at::Scalar& /*alpha*/,
                           at::Tensor& out) {
  return out;
}

at::Tensor& meta_logical_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  out.resize_(at::infer_size(self.sizes(), other.sizes()));
  return out;
}
at::Tensor& meta_logical_not_out(const at::Tensor& self, at::Tensor& out) {
  out.resize_(self.sizes());
  return out;
}

}  // namespace

struct MetaOperators::Registrations {
  template <class Function>
  void add(const char* name, const char* overload, Function* function) {
    handles.push_back(c10::Dispatcher::singleton().registerImpl(
        {name, overload}, c10::DispatchKey::Meta, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function),
        /*cpp_signature=*/std::nullopt, /*inferred_function_schema=*/nullptr, "d9d::MetaOperators"));
  }

  std::vector<c10::RegistrationHandleRAII> handles;
};

MetaOperators::MetaOperators() : registrations_(std::make_unique<Registrations>()) {
  registrations_->add("aten::where", "self", &meta_where);
  registrations_->add("aten::index_select", "", &meta_index_select);
  registrations_->add("aten::embedding_dense_backward", "", &meta_embedding_gradient);
  registrations_->add("aten::searchsorted", "Tensor", &meta_searchsorted);
  registrations_->add("aten::mm", "dtype_out", &meta_mm_out);
  registrations_->add("aten::addmm", "dtype_out", &meta_addmm_out);
  registrations_->add("aten::logical_and", "out", &meta_logical_out);
  registrations_->add("aten::logical_or", "out", &meta_logical_out);
  registrations_->add("aten::logical_not", "out", &meta_logical_not_out);
}

MetaOperators::~MetaOperators() = default;

}  // namespace d9d
