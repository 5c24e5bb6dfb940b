#include "tests/kernels/op_testing.h"

#include <limits>
#include <random>

#include <torch/csrc/autograd/autograd.h>

namespace d9d::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Run {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> leaves;
};

Run run(const TensorFunction& function, const std::vector<at::Tensor>& inputs) {
  Run result;
  for (const at::Tensor& input : inputs) result.leaves.push_back(input.is_floating_point() ? leaf(input) : input);
  result.outputs = function(result.leaves);
  std::vector<at::Tensor> grads;
  for (const at::Tensor& output : result.outputs)
    grads.push_back(values(output.sizes(), 1000 + grads.size(), output.scalar_type()));
  backward(result.outputs, grads);
  return result;
}

}  // namespace

at::Tensor values(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType dtype) {
  at::Tensor result = at::empty(shape, at::kDouble);
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  double* data = result.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < result.numel(); ++i) data[i] = normal(engine);
  return result.to(dtype);
}

at::Tensor leaf(const at::Tensor& tensor) {
  at::Tensor result = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
  return result.copy_(tensor.detach()).requires_grad_();
}

void backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& grads) {
  torch::autograd::backward(outputs, grads);
}

double difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (!actual.defined() || actual.sizes() != expected.sizes()) return kInfinity;
  if (expected.numel() == 0) return 0;
  const at::Tensor wide = expected.detach().to(at::kDouble);
  const double error = (actual.detach().to(at::kDouble) - wide).abs().max().item<double>();
  return std::isfinite(error) ? error / std::max(1.0, wide.abs().max().item<double>()) : kInfinity;
}

double worst_difference(const TensorFunction& op, const TensorFunction& expected,
                        const std::vector<at::Tensor>& inputs) {
  const Run actual_run = run(op, inputs);
  const Run expected_run = run(expected, inputs);
  double worst = actual_run.outputs.size() == expected_run.outputs.size() ? 0 : kInfinity;
  const auto compare = [&](const at::Tensor& actual, const at::Tensor& wanted) {
    worst = std::max(worst, difference(actual, wanted));
    if (actual.defined() && actual.scalar_type() != wanted.scalar_type()) worst = kInfinity;
  };
  for (std::size_t i = 0; i < expected_run.outputs.size(); ++i)
    compare(actual_run.outputs.at(i), expected_run.outputs[i]);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].is_floating_point()) compare(actual_run.leaves[i].grad(), expected_run.leaves[i].grad());
  return worst;
}

}  // namespace d9d::testing
