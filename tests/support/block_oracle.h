// The cases of blocks_oracle.py: what PyTorch and transformers computed, and the comparison of one of this library's
// modules with it.
//
// Example
//   expect_equals_oracle(
//       "swiglu", [] { return make_module<SwiGLU>(SwiGLUConfig{24, 20}); },
//       [](const ModulePtr<SwiGLU>& swiglu, const Tensors& inputs) { return swiglu(inputs.at("x")); });
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/modules/module.h"

namespace d9d::test {

using Tensors = std::map<std::string, at::Tensor>;

// The folder of the script's results. The first call runs the script; the tests of this binary share one run.
[[nodiscard]] const std::filesystem::path& oracle_folder();
// A tensor of cases.safetensors.
[[nodiscard]] at::Tensor oracle_tensor(const std::string& name);

struct OracleCase {
  Tensors inputs;  // leaves; grad_out is the gradient of the output
  Tensors weights;
  at::Tensor output;
  Tensors gradients;  // of weights and inputs
};

// Floating tensors are converted to `dtype`; those of the oracle are fp64.
[[nodiscard]] OracleCase oracle_case(const std::string& name, at::ScalarType dtype);

// Gives the module storage of `dtype` and sets its parameters; `values` must have an entry for each of them.
void load(Module& module, const Tensors& values, at::ScalarType dtype);

void backward(const at::Tensor& output, const at::Tensor& grad_output);
// The gradients of the parameters; undefined for a parameter without a gradient.
[[nodiscard]] Tensors gradients_of(const Module& module);

// Runs backward from `output` and compares it and all gradients with the case.
void expect_matches(const Module& module, const at::Tensor& output, const OracleCase& oracle, at::ScalarType dtype);

// Compares forward(make(), inputs) in fp64 and in fp32.
template <class Make, class Forward>
void expect_equals_oracle(const std::string& name, const Make& make, const Forward& forward) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    SCOPED_TRACE(name);
    const OracleCase oracle = oracle_case(name, dtype);
    const auto module = make();
    load(*module, oracle.weights, dtype);
    expect_matches(*module, forward(module, oracle.inputs), oracle, dtype);
  }
}

}  // namespace d9d::test
