// Measures forward and backward of an operator on a device, as rows of a table.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

#include "benchmarks/device/device_table.h"

namespace d9d::benchmarks {

using Tensors = std::vector<at::Tensor>;
using Operator = std::function<Tensors(const Tensors&)>;

struct NamedOperator {
  std::string name;
  Operator run;
};

struct OperatorCase {
  std::string operation;
  std::string shape;
  double forward_bytes = 0;
  double backward_bytes = 0;
  double forward_flop = 0;  // 0: the column of operations stays empty
  double backward_flop = 0;
  std::function<Tensors()> make_inputs;
  std::vector<NamedOperator> implementations;
};

// Adds two rows per implementation. Autograd records the forward, as in training; the backward computes the gradients
// of the inputs that require one.
inline void measure_forward_and_backward(DeviceTable& table, const OperatorCase& measured) {
  std::vector<Tensors> inputs(static_cast<std::size_t>(num_copies(measured.forward_bytes)));
  std::generate(inputs.begin(), inputs.end(), measured.make_inputs);
  const auto inputs_of = [&](std::int64_t call) -> const Tensors& {
    return inputs[static_cast<std::size_t>(call) % inputs.size()];
  };
  for (const auto& [name, run] : measured.implementations) {
    table.measure({.operation = measured.operation + " forward",
                   .shape = measured.shape,
                   .implementation = name,
                   .bytes = measured.forward_bytes,
                   .flop = measured.forward_flop},
                  [&](std::int64_t call) { (void)run(inputs_of(call)); });
    std::vector<Tensors> outputs;
    std::vector<Tensors> grads;
    for (const Tensors& each : inputs) {
      outputs.push_back(run(each));
      grads.emplace_back();
      for (const at::Tensor& output : outputs.back()) grads.back().push_back(at::randn_like(output));
    }
    table.measure({.operation = measured.operation + " backward",
                   .shape = measured.shape,
                   .implementation = name,
                   .bytes = measured.backward_bytes,
                   .flop = measured.backward_flop},
                  [&](std::int64_t call) {
                    const auto i = static_cast<std::size_t>(call) % inputs.size();
                    Tensors leaves;
                    for (const at::Tensor& input : inputs[i])
                      if (input.requires_grad()) leaves.push_back(input);
                    (void)torch::autograd::grad(outputs[i], leaves, grads[i], /*retain_graph=*/true);
                  });
  }
}

}  // namespace d9d::benchmarks
