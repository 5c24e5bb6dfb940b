#include "d9d/kernels/linear/gemm.h"

#include <optional>
#include <string_view>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace d9d::kernels::detail {
namespace {

using OneDnnLinear = at::Tensor(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                std::string_view attribute, c10::List<std::optional<at::Scalar>> scalars,
                                std::optional<std::string_view> algorithm);

// LibTorch's product by oneDNN, which it has for graphs that were compiled; none in builds without it.
const std::optional<c10::TypedOperatorHandle<OneDnnLinear>>& one_dnn_linear() {
  static const auto kLinear = [] {
    std::optional<c10::TypedOperatorHandle<OneDnnLinear>> found;
    const auto handle = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (handle) found = handle->typed<OneDnnLinear>();
    return found;
  }();
  return kLinear;
}

// Whether oneDNN is faster than LibTorch's BLAS: that copies the weight for every product, which takes longer than the
// product of a few rows, as a decoder has.
bool has_few_rows(const at::Tensor& x, const at::Tensor& weight) {
  constexpr std::int64_t kFew = 32, kLarge = 1 << 16;
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.size(0) > 1 && x.size(0) <= kFew &&
         weight.numel() >= kLarge && x.is_contiguous() && weight.is_contiguous() &&
         at::globalContext().userEnabledMkldnn() && one_dnn_linear();
}

}  // namespace

void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (out.scalar_type() == a.scalar_type()) {
    at::mm_out(out, a, b);
  } else {
    at::mm_out(out, a, b, out.scalar_type());
  }
}

void accumulate(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (out.scalar_type() == a.scalar_type()) {
    out.addmm_(a, b);
  } else {
    at::addmm_out(out, out, a, b, out.scalar_type());
  }
}

at::Tensor rows_product(const at::Tensor& x, const at::Tensor& weight) {
  if (has_few_rows(x, weight)) {
    return one_dnn_linear()->call(x, weight, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
  }
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  write_rows_product(out, x, weight);
  return out;
}

void write_rows_product(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight) {
  if (!write_rows_product_by_cublas(out, x, weight)) multiply(out, x, weight.t());
}

}  // namespace d9d::kernels::detail
