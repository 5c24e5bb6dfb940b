#include "tests/support/block_oracle.h"

#include <cerrno>

#include <torch/csrc/autograd/autograd.h>

#include "d9d/model_state/io/safetensors.h"

#include "tests/support/compare.h"
#include "tests/support/python.h"

namespace d9d::test {
namespace {

const SafetensorsFile& oracle_file() {
  static const SafetensorsFile file(oracle_folder() / "cases.safetensors");
  return file;
}

}  // namespace

const std::filesystem::path& oracle_folder() {
  static const std::filesystem::path folder = [] {
    // Each test program has its own folder, because several of them run at the same time.
    const std::string program = ::program_invocation_short_name;
    std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "d9d" / (program + "_oracle");
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
    run_python("tests/blocks/blocks_oracle.py", {path.string()});
    return path;
  }();
  return folder;
}

at::Tensor oracle_tensor(const std::string& name) { return oracle_file().tensor(name); }

OracleCase oracle_case(const std::string& name, at::ScalarType dtype) {
  OracleCase oracle;
  const auto read = [&](const std::string& full_name) {
    const at::Tensor tensor = oracle_tensor(full_name);
    return tensor.is_floating_point() ? tensor.to(dtype).clone() : tensor;
  };
  const auto read_all = [&](const std::string& prefix) {
    Tensors tensors;
    for (const auto& [full_name, entry] : oracle_file().entries()) {
      if (full_name.starts_with(prefix)) tensors.emplace(full_name.substr(prefix.size()), read(full_name));
    }
    return tensors;
  };
  oracle = {.inputs = read_all(name + "/in/"),
            .weights = read_all(name + "/weight/"),
            .output = read(name + "/out"),
            .gradients = read_all(name + "/grad/")};
  for (auto& [input, tensor] : oracle.inputs) tensor.requires_grad_(oracle.gradients.contains(input));
  return oracle;
}

void load(Module& module, const Tensors& values, at::ScalarType dtype) {
  module.to(dtype);
  module.materialize(at::kCPU);
  module.reset_parameters(/*base_seed=*/1);
  const auto parameters = module.named_parameters();
  EXPECT_EQ(parameters.size(), values.size());
  for (const auto& [name, parameter] : parameters) {
    ASSERT_TRUE(values.contains(name)) << name;
    parameter->copy_from(values.at(name));
  }
}

void backward(const at::Tensor& output, const at::Tensor& grad_output) {
  torch::autograd::backward({output}, {grad_output});
}

Tensors gradients_of(const Module& module) {
  Tensors gradients;
  for (const auto& [name, parameter] : module.named_parameters()) gradients.emplace(name, parameter->local().grad());
  return gradients;
}

void expect_matches(const Module& module, const at::Tensor& output, const OracleCase& oracle, at::ScalarType dtype) {
  const Tolerance& limit = tolerance(dtype == at::kDouble ? "fp64" : "fp32");
  expect_close("output", output, oracle.output, limit);
  backward(output, oracle.inputs.at("grad_out"));
  Tensors gradients = gradients_of(module);
  for (const auto& [name, tensor] : oracle.inputs) {
    if (tensor.requires_grad()) gradients.emplace(name, tensor.grad());
  }
  expect_all_close(gradients, oracle.gradients, limit);
}

}  // namespace d9d::test
