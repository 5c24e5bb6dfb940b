#include "d9d/kernels/linear/linear.h"

#include <algorithm>
#include <iterator>

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

// Computes the gradients of the inputs from position `first` on, one for each gradient of an output, and puts them into
// `results`. `product` gets these gradients and then `others`.
template <class Product>
void put_gradients(AutogradContext* context, std::size_t first, const variable_list& grads, const variable_list& others,
                   const Product& product, variable_list& results) {
  std::vector<std::size_t> wanted;
  variable_list reads;
  reads.reserve(grads.size() + others.size());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined() || !context->needs_input_grad(first + i)) continue;
    wanted.push_back(first + i);
    reads.push_back(grads[i]);
  }
  if (wanted.empty()) return;
  std::ranges::copy(others, std::back_inserter(reads));
  variable_list gradients = make_gradients(wanted, reads, product);
  for (std::size_t i = 0; i < wanted.size(); ++i) results[wanted[i]] = std::move(gradients[i]);
}

struct Linears : torch::autograd::Function<Linears> {
  // Saves x if a weight needs a gradient, and the weights if x does.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList weight_list,
                               at::TensorList biases) {
    const std::vector<at::Tensor> weights = weight_list.vec();
    context->set_materialize_grads(false);
    const bool trains = std::ranges::any_of(weights, [](const at::Tensor& weight) { return weight.requires_grad(); });
    variable_list saved(1 + weights.size());
    if (trains) saved[0] = x;
    if (x.requires_grad()) std::ranges::copy(weights, saved.begin() + 1);
    context->save_for_backward(std::move(saved));
    if (!biases.empty()) context->saved_data["has_biases"] = true;
    // Outputs may be slices of one buffer. Autograd need not track them as views, because they are not written in
    // place.
    const at::AutoDispatchBelowADInplaceOrView no_views;
    variable_list outputs = detail::linears_forward(as_matrix(x), weights, biases.vec(), /*joins=*/x.is_cuda());
    std::vector<std::int64_t> shape = x.sizes().vec();
    for (at::Tensor& output : outputs) {
      shape.back() = output.size(1);
      output = output.view(shape);
    }
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    detail::check_first_order("linear");
    const bool has_biases = context->saved_data.count("has_biases") > 0;
    variable_list results(1 + (has_biases ? 2 : 1) * grads.size());
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
    const auto of_weights = [](auto tensors, const GradientPlaces& places) {
      return detail::linears_weight_gradients(tensors.first(tensors.size() - 1), tensors.back(), places);
    };
    if (saved[0].defined()) put_gradients(context, 1, grads, {as_matrix(saved[0])}, of_weights, results);
    const auto of_biases = [](auto tensors, const GradientPlaces& places) {
      return detail::linears_bias_gradients(tensors, places);
    };
    if (has_biases) put_gradients(context, 1 + grads.size(), grads, {}, of_biases, results);
    return results;
  }
};

}  // namespace

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                const std::vector<at::Tensor>& biases) {
  for (const at::Tensor& weight : weights) {
    D9D_CHECK(x.dim() >= 1 && weight.dim() == 2 && weight.size(1) == x.size(-1) &&
                  weight.scalar_type() == x.scalar_type() && weight.device() == x.device(),
              ConfigError,
              "[kernels::linear] expected x [..., in] and a weight [out, in] of one dtype and device, got ", x.sizes(),
              " ", x.scalar_type(), " on ", x.device(), " and ", weight.sizes(), " ", weight.scalar_type(), " on ",
              weight.device(), ". Make them agree.");
  }
  D9D_CHECK(biases.empty() || biases.size() == weights.size(), ConfigError,
            "[kernels::linear] expected a bias for each of ", weights.size(), " weights or none, got ", biases.size(),
            ".");
  for (std::size_t i = 0; i < biases.size(); ++i) {
    const at::Tensor& bias = biases[i];
    D9D_CHECK(bias.dim() == 1 && bias.size(0) == weights[i].size(0) && bias.scalar_type() == x.scalar_type() &&
                  bias.device() == x.device(),
              ConfigError, "[kernels::linear] expected a bias [", weights[i].size(0), "] ", x.scalar_type(), " on ",
              x.device(), ", got ", bias.sizes(), " ", bias.scalar_type(), " on ", bias.device(), ".");
  }
  return Linears::apply(x, at::TensorList(weights), at::TensorList(biases));
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) { return linears(x, {weight}).front(); }

}  // namespace d9d::kernels
