#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/blocks/moe/moe_layer.h"

#include "tests/support/device.h"
#include "tests/support/gpu_test.h"

namespace d9d::moe_layer_cuda_test {
namespace {

class MoELayerCuda : public test::GpuTest {};

TEST_F(MoELayerCuda, Does_not_wait_for_the_device) {
  const auto moe = make_module<MoELayer>(MoELayerConfig{.hidden_size = 128,
                                                        .intermediate_size = 64,
                                                        .num_experts = 16,
                                                        .top_k = 4,
                                                        .auxiliary_loss_coefficient = 0.01,
                                                        .expert_bias_update_rate = 1e-3});
  moe->to(at::kBFloat16);
  moe->materialize(at::Device(at::kCUDA, 0));
  moe->reset_parameters(/*base_seed=*/1);
  const at::Tensor x =
      at::ones({2, 64, 128}, at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kBFloat16)).requires_grad_();
  EXPECT_FALSE(test::waits_for_device([&] {
    const MoEOutput output = moe(x);
    (output.hidden_states.sum() + *output.auxiliary_loss).backward();
    moe->finish_step(StepOutcome::kUpdated);
  }));
}

}  // namespace
}  // namespace d9d::moe_layer_cuda_test
