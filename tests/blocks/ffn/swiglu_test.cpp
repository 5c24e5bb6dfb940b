// Compares feed-forward blocks and norms with those of PyTorch and transformers.
#include "d9d/blocks/ffn/swiglu.h"

#include <gtest/gtest.h>

#include "d9d/blocks/moe/shared_swiglu.h"
#include "d9d/blocks/normalization/rms_norm.h"

#include "tests/support/block_oracle.h"
#include "tests/support/compare.h"

namespace d9d::swiglu_test {
namespace {
using test::Tensors;

const auto run = [](const auto& module, const Tensors& inputs) { return module(inputs.at("x")); };

TEST(SwiGLU, Equals_the_mlp_of_qwen3) {
  test::expect_equals_oracle(
      "swiglu",
      [] {
        return make_module<SwiGLU>(SwiGLUConfig{24, 20});
      },
      run);
}

TEST(SwiGLU, With_biases_equals_the_mlp_of_llama) {
  test::expect_equals_oracle(
      "swiglu_bias",
      [] {
        return make_module<SwiGLU>(SwiGLUConfig{24, 20, true});
      },
      run);
}

// More positions than a part has; weights' gradients are sums over the parts.
TEST(SwiGLU, Recomputed_in_parts_equals_itself) {
  constexpr std::int64_t kPositions = 2 * SwiGLU::kPositionsOfPart + 5;
  const at::Tensor values = (at::arange(kPositions * 3, at::kDouble) * 0.7).sin().view({1, kPositions, 3});
  const auto results = [&](bool recomputes) {
    const auto mlp = make_module<SwiGLU>(SwiGLUConfig{3, 2});
    mlp->to(at::kDouble);
    mlp->materialize(at::kCPU);
    mlp->reset_parameters(1);
    mlp->set_activation_checkpointing(recomputes);
    const at::Tensor x = values.clone().set_requires_grad(true);
    const at::Tensor y = mlp(x);
    (y * values).sum().backward();
    Tensors all = test::gradients_of(*mlp);
    all.emplace("x", x.grad());
    all.emplace("y", y.detach());
    return all;
  };
  const Tensors expected = results(false), actual = results(true);
  test::expect_all_close(actual, expected, test::tolerance("fp64"));
}

TEST(SharedSwiGLU, With_a_gate_equals_the_shared_expert_of_qwen3_5) {
  test::expect_equals_oracle(
      "shared_expert_gated",
      [] {
        return make_module<SharedSwiGLU>(24, SharedExpertParameters{.intermediate_size = 10, .enable_gate = true});
      },
      run);
}

TEST(SharedSwiGLU, Without_a_gate_is_a_feed_forward) {
  test::OracleCase oracle = test::oracle_case("swiglu", at::kDouble);
  auto shared = make_module<SharedSwiGLU>(24, SharedExpertParameters{.intermediate_size = 20});
  const auto prefixed = [](const Tensors& tensors) {
    Tensors renamed;
    for (const auto& [name, tensor] : tensors) renamed.emplace(name == "x" ? name : "expert." + name, tensor);
    return renamed;
  };
  oracle.gradients = prefixed(oracle.gradients);
  test::load(*shared, prefixed(oracle.weights), at::kDouble);
  test::expect_matches(*shared, shared(oracle.inputs.at("x")), oracle, at::kDouble);
}

TEST(RMSNorm, Equals_that_of_torch) {
  test::expect_equals_oracle(
      "rms_norm",
      [] {
        return make_module<RMSNorm>(RMSNormConfig{24, 1e-5});
      },
      run);
}

TEST(RMSNorm, Takes_inputs_with_strides) {
  const auto strided = [](const ModulePtr<RMSNorm>& norm, const Tensors& inputs) {
    return norm(inputs.at("x").transpose(0, 1).contiguous().transpose(0, 1));
  };
  test::expect_equals_oracle(
      "rms_norm",
      [] {
        return make_module<RMSNorm>(RMSNormConfig{24, 1e-5});
      },
      strided);
}

TEST(RMSNorm, With_a_zero_centred_weight_equals_that_of_qwen3_next) {
  test::expect_equals_oracle(
      "rms_norm_zero_centered",
      [] {
        return make_module<RMSNorm>(RMSNormConfig{24, 1e-5, true});
      },
      run);
}

// The weights of a block in one buffer, as on a GPU.
TEST(Linears, Compute_the_same_once_their_weights_lie_together) {
  const std::vector<ModulePtr<Linear>> linears = {make_module<Linear>(LinearConfig{5, 3}),
                                                  make_module<Linear>(LinearConfig{5, 4})};
  const at::Tensor x = at::linspace(-1, 1, 10, at::kDouble).view({2, 5});
  std::vector<at::Tensor> expected;
  for (const auto& linear : linears) {
    linear->to(at::kDouble);
    linear->materialize(at::kCPU);
  }
  linears[0]->set_requires_grad(false);
  join_weights(linears);
  for (const auto& linear : linears) {
    linear->reset_parameters(1);
    expected.push_back(at::linear(x, linear->weight->local()));
  }
  const at::Tensor& first = linears[0]->weight->local();
  const at::Tensor& second = linears[1]->weight->local();
  EXPECT_EQ(second.const_data_ptr<double>(), first.const_data_ptr<double>() + first.numel());
  const std::vector<at::Tensor> outputs = linears_of(x, linears);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(outputs[i], expected[i], 1e-14, 1e-14)) << i;
  EXPECT_FALSE(first.requires_grad());
  outputs[1].sum().backward();
  EXPECT_TRUE(at::allclose(second.grad(), x.sum(0).expand({4, 5}), 1e-14, 1e-14));
}

TEST(Linears, With_a_bias_compute_each_by_itself) {
  const std::vector<ModulePtr<Linear>> linears = {make_module<Linear>(LinearConfig{5, 3, true}),
                                                  make_module<Linear>(LinearConfig{5, 4})};
  for (const auto& linear : linears) {
    linear->materialize(at::kCPU);
    linear->reset_parameters(1);
  }
  const at::Tensor x = at::linspace(-1, 1, 10).view({2, 5});
  EXPECT_TRUE(
      at::equal(linears_of(x, linears)[0], at::linear(x, linears[0]->weight->local(), linears[0]->bias->local())));
}

TEST(Linears, With_a_bias_each_are_one_operator) {
  const std::vector<ModulePtr<Linear>> linears = {make_module<Linear>(LinearConfig{5, 3, true}),
                                                  make_module<Linear>(LinearConfig{5, 4, true})};
  for (const auto& linear : linears) {
    linear->to(at::kDouble);
    linear->materialize(at::kCPU);
    linear->reset_parameters(1);
  }
  const at::Tensor x = at::linspace(-1, 1, 10, at::kDouble).view({2, 5});
  const std::vector<at::Tensor> outputs = linears_of(x, linears);
  EXPECT_EQ(outputs[0].grad_fn(), outputs[1].grad_fn());
  for (std::size_t i = 0; i < 2; ++i) {
    const at::Tensor expected = at::linear(x, linears[i]->weight->local(), linears[i]->bias->local());
    EXPECT_TRUE(at::allclose(outputs[i], expected, 1e-14, 1e-14)) << i;
  }
}

TEST(RMSNorm, Norms_a_sum_and_returns_both) {
  const auto of_sum = [](const ModulePtr<RMSNorm>& norm, const Tensors& inputs) {
    const at::Tensor part = inputs.at("x") * 0.25;
    const auto [sum, normed] = norm(inputs.at("x") - part, part);
    EXPECT_TRUE(at::allclose(sum, inputs.at("x"), 1e-14, 1e-14));
    return normed;
  };
  test::expect_equals_oracle(
      "rms_norm",
      [] {
        return make_module<RMSNorm>(RMSNormConfig{24, 1e-5});
      },
      of_sum);
}

TEST(RMSNorm, Starts_as_a_factor_of_one) {
  const at::Tensor x = at::linspace(-1, 1, 24, at::kDouble);
  const at::Tensor expected = x / x.square().mean().add(1e-5).sqrt();
  for (const bool zero_centered : {false, true}) {
    auto norm = make_module<RMSNorm>(RMSNormConfig{24, 1e-5, zero_centered});
    norm->to(at::kDouble);
    norm->materialize(at::kCPU);
    norm->reset_parameters(1);
    EXPECT_TRUE(at::allclose(norm(x), expected, 1e-12, 1e-12)) << zero_centered;
  }
}

}  // namespace
}  // namespace d9d::swiglu_test
