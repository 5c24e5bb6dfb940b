#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/blocks/moe/moe_layer.h"

#include "tests/support/block_oracle.h"
#include "tests/support/device.h"
#include "tests/support/gpu_test.h"

namespace d9d::moe_layer_cuda_test {
namespace {

const at::Device kGpu(at::kCUDA, 0);

class MoELayerCuda : public test::GpuTest {
 protected:
  static ModulePtr<MoELayer> make_layer() {
    auto moe = make_module<MoELayer>(
        MoELayerConfig{.hidden_size = 128,
                       .intermediate_size = 64,
                       .num_experts = 16,
                       .top_k = 4,
                       .shared_expert = SharedExpertParameters{.intermediate_size = 64, .enable_gate = true},
                       .auxiliary_loss_coefficient = 0.01,
                       .expert_bias_update_rate = 1e-3});
    moe->to(at::kBFloat16);
    moe->materialize(kGpu);
    moe->reset_parameters(/*base_seed=*/1);
    return moe;
  }
  static at::Tensor input() {
    const at::Tensor values = at::arange(2 * 64 * 128, at::TensorOptions(kGpu).dtype(at::kFloat)).sin();
    return values.view({2, 64, 128}).to(at::kBFloat16);
  }
};

TEST_F(MoELayerCuda, Does_not_wait_for_the_device) {
  const auto moe = make_layer();
  const at::Tensor x = input().requires_grad_();
  for (const std::optional<at::Tensor>& real :
       {std::optional<at::Tensor>(), std::optional(at::arange(70, at::TensorOptions(kGpu).dtype(at::kLong)))}) {
    EXPECT_FALSE(test::waits_for_device([&] {
      const MoEOutput output = moe(x, real);
      (output.hidden_states.sum() + *output.auxiliary_loss).backward();
      moe->finish_step(StepOutcome::kUpdated);
    })) << (real ? "with padding" : "without padding");
  }
}

// The same kernels get the same tokens.
TEST_F(MoELayerCuda, Does_with_padding_what_it_does_without) {
  const auto padded = make_layer(), alone = make_layer();
  const at::Tensor x = input().requires_grad_();
  const at::Tensor tokens = input().view({128, 128}).narrow(0, 0, 70).clone().requires_grad_();
  const MoEOutput of_padded = padded(x, std::optional(at::arange(70, at::TensorOptions(kGpu).dtype(at::kLong))));
  const MoEOutput of_tokens = alone(tokens);
  const at::Tensor flat = of_padded.hidden_states.reshape({128, 128});
  EXPECT_TRUE(at::equal(flat.narrow(0, 0, 70), of_tokens.hidden_states));
  EXPECT_EQ(flat.narrow(0, 70, 58).abs().max().item<double>(), 0);
  EXPECT_TRUE(at::equal(*of_padded.auxiliary_loss, *of_tokens.auxiliary_loss));
  (flat.square().sum() + *of_padded.auxiliary_loss).backward();
  (of_tokens.hidden_states.square().sum() + *of_tokens.auxiliary_loss).backward();
  EXPECT_TRUE(at::equal(x.grad().view({128, 128}).narrow(0, 0, 70), tokens.grad()));
  EXPECT_EQ(x.grad().view({128, 128}).narrow(0, 70, 58).abs().max().item<double>(), 0);
  const auto gradients = test::gradients_of(*padded);
  for (const auto& [name, gradient] : test::gradients_of(*alone)) {
    EXPECT_TRUE(at::equal(gradients.at(name), gradient)) << name;
  }
  EXPECT_TRUE(at::equal(padded->tokens_per_expert->local, alone->tokens_per_expert->local));
}

TEST_F(MoELayerCuda, Of_nothing_but_padding_has_gradients_of_zero) {
  const auto moe = make_layer();
  const at::Tensor x = input().requires_grad_();
  const MoEOutput output = moe(x, std::optional(at::empty({0}, at::TensorOptions(kGpu).dtype(at::kLong))));
  (output.hidden_states.sum() + *output.auxiliary_loss).backward();
  EXPECT_EQ(output.hidden_states.abs().max().item<double>(), 0);
  EXPECT_EQ(x.grad().abs().max().item<double>(), 0);
  for (const auto& [name, gradient] : test::gradients_of(*moe)) {
    EXPECT_EQ(gradient.abs().max().item<double>(), 0) << name;
  }
}

}  // namespace
}  // namespace d9d::moe_layer_cuda_test
