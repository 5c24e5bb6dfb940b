// A user's CUDA kernel as an operator with a backward pass, checked against a composition of ATen's operators:
// out = weight * relu(x)^2.
//
//   custom_kernel
#include <iostream>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/core/device/cuda_runtime.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/core/launch/launch.h"

#include "squared_relu_kernel.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor squared_relu_aten(const at::Tensor& x, const at::Tensor& weight) { return weight * at::relu(x).square(); }

// x [R, N] and weight [N], float on one CUDA device, contiguous.
struct SquaredRelu : torch::autograd::Function<SquaredRelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    const c10::DeviceGuard guard(x.device());
    at::Tensor out = at::empty_like(x);
    launch_squared_relu(x.const_data_ptr<float>(), weight.const_data_ptr<float>(), out.mutable_data_ptr<float>(),
                        x.size(0), x.size(1), d9d::current_cuda_stream(x.device()));
    return out;
  }

  // Computes only the gradients that this pass needs: a pipeline schedule may compute gradients of inputs now and those
  // of weights later, in two passes over the same graph.
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], grad_out = grads[0].contiguous();
    const c10::DeviceGuard guard(x.device());
    auto* const stream = d9d::current_cuda_stream(x.device());
    variable_list result(2);
    if (context->needs_input_grad(0)) {
      result[0] = at::empty_like(x);
      launch_squared_relu_grad_x(grad_out.const_data_ptr<float>(), x.const_data_ptr<float>(),
                                 weight.const_data_ptr<float>(), result[0].mutable_data_ptr<float>(), x.size(0),
                                 x.size(1), stream);
    }
    if (context->needs_input_grad(1)) {
      result[1] = at::empty_like(weight);
      launch_squared_relu_grad_weight(grad_out.const_data_ptr<float>(), x.const_data_ptr<float>(),
                                      result[1].mutable_data_ptr<float>(), x.size(0), x.size(1), stream);
    }
    return result;
  }
};

at::Tensor squared_relu(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cuda() ? SquaredRelu::apply(x, weight) : squared_relu_aten(x, weight);
}

void check(d9d::DistContext& context) {
  const at::TensorOptions options = at::device(context.device()).dtype(at::kFloat);
  const at::Tensor x = at::sin(at::arange(1000 * 77, options)).view({1000, 77}).requires_grad_();
  const at::Tensor weight = at::cos(at::arange(77, options)).requires_grad_();
  const at::Tensor grad = at::cos(at::arange(1000 * 77, options) * 3).view({1000, 77});
  const at::Tensor out = squared_relu(x, weight);
  const auto of_x = torch::autograd::grad({out}, {x}, {grad}, /*retain_graph=*/true);  // skips the weight's kernel
  const auto of_weight = torch::autograd::grad({out}, {weight}, {grad});               // now it runs
  const at::Tensor expected = squared_relu_aten(x, weight);
  const auto expected_grads = torch::autograd::grad({expected}, {x, weight}, {grad});
  const auto difference = [](const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); };
  const double of_out = difference(out, expected), of_grad_x = difference(of_x[0], expected_grads[0]),
               of_grad_weight = difference(of_weight[0], expected_grads[1]);
  std::cout << "on " << context.device() << ", largest differences to ATen: out " << of_out << ", gradient of x "
            << of_grad_x << ", of weight " << of_grad_weight << '\n';
  D9D_CHECK(of_out < 1e-4 && of_grad_x < 1e-4 && of_grad_weight < 1e-4, d9d::StateError,
            "[example] expected what ATen computes, got another result.");
}

}  // namespace

int main() { return d9d::launch(d9d::LaunchConfig{}, d9d::DeviceMeshParameters{}, check); }
