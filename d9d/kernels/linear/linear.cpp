#include "d9d/kernels/linear/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/kernels/common/first_order.h"
#include "d9d/kernels/linear/linear_gemms.h"

namespace d9d::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_matrix(const at::Tensor& tensor) {
  const at::IntArrayRef sizes = tensor.sizes();
  return tensor.reshape({c10::multiply_integers(sizes.begin(), sizes.end() - 1), sizes.back()});
}

// The gradient as a matrix with contiguous columns within a row. Rows may have any stride; otherwise it is copied.
at::Tensor gradient_matrix(const at::Tensor& grad) {
  const at::Tensor matrix = as_matrix(grad);
  return matrix.stride(1) == 1 && matrix.stride(0) >= matrix.size(1) ? matrix : matrix.contiguous();
}

struct Linears : torch::autograd::Function<Linears> {
  // Saves x if a weight needs a gradient, and the weights if x does.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList weight_list) {
    const std::vector<at::Tensor> weights = weight_list.vec();
    context->set_materialize_grads(false);
    const bool trains = std::ranges::any_of(weights, [](const at::Tensor& weight) { return weight.requires_grad(); });
    variable_list saved(1 + weights.size());
    if (trains) saved[0] = x;
    if (x.requires_grad()) std::ranges::copy(weights, saved.begin() + 1);
    context->save_for_backward(std::move(saved));
    // Outputs may be slices of one buffer. Autograd need not track them as views, because they are not written in
    // place.
    const at::AutoDispatchBelowADInplaceOrView no_views;
    variable_list outputs = detail::linears_forward(as_matrix(x), weights, /*joins=*/x.is_cuda());
    std::vector<std::int64_t> shape = x.sizes().vec();
    for (at::Tensor& output : outputs) {
      shape.back() = output.size(1);
      output = output.view(shape);
    }
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("linear");
    variable_list results(1 + grads.size());
    const auto any = std::ranges::find_if(grads, [](const at::Tensor& grad) { return grad.defined(); });
    if (any == grads.end()) return results;
    std::vector<std::int64_t> shape = any->sizes().vec();
    for (at::Tensor& grad : grads) {
      if (grad.defined()) grad = gradient_matrix(grad);
    }
    const variable_list saved = context->get_saved_variables();
    if (context->needs_input_grad(0)) {
      const std::vector<at::Tensor> weights(saved.begin() + 1, saved.end());
      shape.back() = weights.front().size(1);
      results[0] = detail::linears_input_gradient(grads, weights).view(shape);
    }
    std::vector<std::size_t> wanted;
    std::vector<at::Tensor> reads;  // gradients of outputs, then x
    reads.reserve(grads.size() + 1);
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined() || !context->needs_input_grad(1 + i)) continue;
      wanted.push_back(1 + i);
      reads.push_back(grads[i]);
    }
    if (wanted.empty()) return results;
    reads.push_back(as_matrix(saved[0]));
    std::vector<at::Tensor> of_weights = make_gradients(wanted, reads, [](auto tensors, const GradientPlaces& places) {
      return detail::linears_weight_gradients(tensors.first(tensors.size() - 1), tensors.back(), places);
    });
    for (std::size_t i = 0; i < wanted.size(); ++i) results[wanted[i]] = std::move(of_weights[i]);
    return results;
  }
};

}  // namespace

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights) {
  for (const at::Tensor& weight : weights) {
    D9D_CHECK(x.dim() >= 1 && weight.dim() == 2 && weight.size(1) == x.size(-1) &&
                  weight.scalar_type() == x.scalar_type() && weight.device() == x.device(),
              ConfigError,
              "[kernels::linear] expected x [..., in] and a weight [out, in] of one dtype and device, got ", x.sizes(),
              " ", x.scalar_type(), " on ", x.device(), " and ", weight.sizes(), " ", weight.scalar_type(), " on ",
              weight.device(), ". Make them agree.");
  }
  return Linears::apply(x, at::TensorList(weights));
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) { return linears(x, {weight}).front(); }

}  // namespace d9d::kernels
