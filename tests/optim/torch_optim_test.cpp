// Every optimiser against torch.optim, and Lion against its formula, with all options and with groups.
#include <algorithm>
#include <sstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/config/record_json.h"
#include "d9d/optim/build_optimizer.h"

#include "tests/support/python.h"

namespace d9d::torch_optim_test {
namespace {

constexpr std::int64_t kSize = 37;

// The parameters of torch_optim_oracle.py.
std::vector<NamedParameter> parameters(at::ScalarType dtype) {
  std::vector<NamedParameter> result;
  for (const auto& [name, role] :
       {std::pair("layer.weight", ParameterRole::kLinear), std::pair("layer.bias", ParameterRole::kVector),
        std::pair("embedding", ParameterRole::kEmbedding), std::pair("head.weight", ParameterRole::kHead)}) {
    const at::Tensor values = at::sin(at::arange(kSize, at::kDouble) + 1 + 10 * std::ssize(result));
    result.push_back({.name = name, .tensor = values.to(dtype).requires_grad_(), .role = role});
  }
  return result;
}

at::Tensor after_100_steps(const OptimizerConfig& config, at::ScalarType dtype) {
  const std::vector<NamedParameter> leaves = parameters(dtype);
  Optimizer optimizer = build_optimizer(config, leaves);
  std::vector<at::Tensor> values;
  for (int step = 0; step < 100; ++step) {
    for (std::int64_t index = 0; index < std::ssize(leaves); ++index) {
      const at::Tensor grad = at::cos(at::arange(kSize, at::kDouble) + 0.37 * step + 10 * index) / (1 + 0.05 * step);
      leaves[static_cast<std::size_t>(index)].tensor.mutable_grad() = grad.to(dtype);
    }
    optimizer.step(optimizer.learning_rate() * (1 - 0.005 * step));
  }
  for (const NamedParameter& leaf : leaves) values.push_back(leaf.tensor.detach());
  return at::cat(values).to(at::kDouble);
}

// 100 steps of some ten operations, which round at 1e-16 each, relative to the largest parameter. In fp32 they round at
// 6e-8, and torch's own steps are up to 9e-7 away from those in fp64.
constexpr double kFp64 = 1e-12, kFp32 = 1e-6, kOfTorch = 1.5;

template <class Config>
void expect_torch(const std::vector<Config>& configs) {
  Json records = Json::array();
  for (const Config& config : configs) records.push_back(write_record(OptimizerConfig(config)));
  std::istringstream numbers(test::run_python("tests/optim/torch_optim_oracle.py", {records.dump()}));
  const auto next_line = [&] {
    std::vector<double> values(4 * kSize);
    for (double& value : values) EXPECT_TRUE(numbers >> value);
    return at::tensor(values, at::kDouble);
  };
  for (std::size_t i = 0; i < configs.size(); ++i) {
    SCOPED_TRACE(records[i].dump());
    const at::Tensor exact = next_line(), in_fp32 = next_line();
    const auto error = [&](const at::Tensor& values) {
      return ((values - exact).abs().max() / exact.abs().max()).template item<double>();
    };
    EXPECT_LT(error(after_100_steps(configs[i], at::kDouble)), kFp64);
    EXPECT_LT(error(after_100_steps(configs[i], at::kFloat)), std::max(kFp32, kOfTorch * error(in_fp32)));
  }
}

TEST(TorchOptim, Is_equalled_by_adamw_over_100_steps_for_each_option_set) {
  expect_torch<AdamWConfig>({AdamWConfig{.lr = 1e-2}, AdamWConfig{.lr = 1e-2, .weight_decay = 0.0},
                             AdamWConfig{.lr = 1e-2, .eps = 1e-3, .weight_decay = 0.3},
                             AdamWConfig{.lr = 1e-2, .betas = {0.0, 0.5}}, AdamWConfig{.lr = 1e-2, .amsgrad = true},
                             AdamWConfig{.lr = 1e-2, .maximize = true},
                             AdamWConfig{.lr = 1e-2, .betas = {0.8, 0.95}, .amsgrad = true, .maximize = true}});
}

TEST(TorchOptim, Is_equalled_by_adam_over_100_steps_for_each_option_set) {
  expect_torch<AdamConfig>(
      {AdamConfig{.lr = 1e-2}, AdamConfig{.lr = 1e-2, .eps = 1e-3, .weight_decay = 0.3},
       AdamConfig{.lr = 1e-2, .betas = {0.0, 0.5}, .weight_decay = 0.0},
       AdamConfig{.lr = 1e-2, .weight_decay = 0.3, .amsgrad = true},
       AdamConfig{.lr = 1e-2, .weight_decay = 0.3, .maximize = true},
       AdamConfig{.lr = 1e-2, .weight_decay = 0.3, .amsgrad = true, .maximize = true, .decoupled_weight_decay = true},
       AdamConfig{.lr = 1e-2, .weight_decay = 0.3, .decoupled_weight_decay = true}});
}

TEST(TorchOptim, Is_equalled_by_sgd_over_100_steps_for_each_option_set) {
  expect_torch<SgdConfig>(
      {SgdConfig{.lr = 1e-2}, SgdConfig{.lr = 1e-2, .weight_decay = 0.3, .maximize = true},
       SgdConfig{.lr = 1e-2, .momentum = 0.9}, SgdConfig{.lr = 1e-2, .momentum = 0.9, .dampening = 0.4},
       SgdConfig{.lr = 1e-2, .momentum = 0.9, .dampening = 0.4, .weight_decay = 0.3, .maximize = true},
       SgdConfig{.lr = 1e-2, .dampening = 0.4}, SgdConfig{.lr = 1e-2, .momentum = 0.8, .nesterov = true},
       SgdConfig{.lr = 1e-2, .momentum = 0.8, .weight_decay = 0.3, .nesterov = true, .maximize = true}});
}

TEST(LionFormula, Is_equalled_over_100_steps_for_each_option_set) {
  expect_torch<LionConfig>({LionConfig{.lr = 1e-2}, LionConfig{.lr = 1e-2, .weight_decay = 0.3},
                            LionConfig{.lr = 1e-2, .betas = {0.95, 0.98}, .weight_decay = 0.1}});
}

template <class Config>
Config grouped(Config config) {
  config.decay_all = false;
  config.groups = {{.group = {.name = "head", .parameters = "head.*", .lr_factor = 0.1, .weight_decay = 0.7}},
                   {.group = {.name = "layer", .parameters = "layer\\.weight", .lr_factor = 3.0}},
                   {.group = {.name = "bias", .parameters = "layer.*", .weight_decay = 0.2}}};
  return config;
}

TEST(TorchOptim, Is_equalled_with_groups_of_parameters) {
  auto adamw = grouped(AdamWConfig{.lr = 1e-2, .weight_decay = 0.3});
  adamw.groups[0].betas = {0.5, 0.6};
  expect_torch<AdamWConfig>({adamw});
  auto adam = grouped(AdamConfig{.lr = 1e-2, .weight_decay = 0.3});
  adam.groups[1].betas = {0.5, 0.6};
  expect_torch<AdamConfig>({adam});
  auto sgd = grouped(SgdConfig{.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.3});
  sgd.groups[0].momentum = 0.4;
  expect_torch<SgdConfig>({sgd});
  auto lion = grouped(LionConfig{.lr = 1e-2, .weight_decay = 0.3});
  lion.groups[2].betas = {0.5, 0.6};
  expect_torch<LionConfig>({lion});
}

}  // namespace
}  // namespace d9d::torch_optim_test
