// Plans for activations on a GPU: what they keep there, and that they change no gradient.
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/core/device/allocated_bytes.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/qwen3_dense/model.h"

#include "tests/support/gpu_test.h"
#include "tests/support/tiny_blocks.h"
#include "tests/support/tolerances.h"

namespace d9d::activation_plans_cuda_test {
namespace {

const at::Device kGpu(at::kCUDA, 0);
constexpr std::int64_t kPositions = 2048, kLayers = 12;

// Fresh memory is filled with NaN, so that values which are read before their copy is complete show.
class ActivationPlansCuda : public test::GpuTest {
 protected:
  void SetUp() override {
    test::GpuTest::SetUp();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }
};

struct Trained {
  std::map<std::string, at::Tensor> tensors;  // the loss and all gradients, of two microbatches
  std::int64_t kept_bytes = 0;                // from the forward of the second to its backward
};

Trained trained(const ActivationPlan& plan) {
  Qwen3DenseParameters parameters = test::tiny_dense();
  parameters.layer.hidden_size = 512;
  parameters.layer.intermediate_size = 1024;
  parameters.layer.num_attention_heads = 4;
  parameters.layer.num_key_value_heads = 2;
  parameters.layer.head_dim = 128;
  parameters.num_hidden_layers = kLayers;
  parameters.max_position_ids = kPositions;
  const auto model =
      make_decoder_for_causal_lm(test::make_backbone(parameters, {.checkpointing = LayerCheckpointing(plan)}));
  model->to(at::kBFloat16);
  model->materialize(kGpu);
  model->reset_parameters(/*base_seed=*/1);
  const at::Tensor ids =
      at::arange(2 * kPositions, at::TensorOptions(kGpu).dtype(at::kLong)).remainder(23).reshape({2, kPositions});
  const at::Tensor positions = at::arange(kPositions, ids.options()).unsqueeze(0).expand_as(ids);
  const AllocatedBytes allocated(kGpu);
  Trained result;
  for (int i = 0; i < 2; ++i) {
    const std::int64_t before = allocated.now();
    const auto output = std::get<DecoderOutput<LanguageModellingHead>>(
        model(SequenceInput{ids}, DecoderForCausalLM::Shared{{.position_ids = positions}, {ids}}));
    const at::Tensor loss = output.head.cross_entropy.sum();
    result.kept_bytes = allocated.now() - before;
    loss.backward();
    result.tensors["loss"] = loss.detach();
  }
  for (const auto& [name, parameter] : model->named_parameters()) result.tensors[name] = parameter->local().grad();
  return result;
}

TEST_F(ActivationPlansCuda, Change_no_gradient_and_keep_less) {
  using enum Recompute;
  constexpr std::int64_t kInput = 2 * kPositions * 512 * 2;  // bytes of the input of a layer
  const Trained expected = trained({kNothing});
  std::int64_t before = expected.kept_bytes;
  for (const ActivationPlan& plan :
       {ActivationPlan{kFeedForward}, ActivationPlan{kAllButAttention}, ActivationPlan{kAll},
        ActivationPlan{kAllButAttention, true}, ActivationPlan{kAll, true}}) {
    SCOPED_TRACE(std::string(enum_name(plan.recompute)) + (plan.offloads ? ", offloaded" : ""));
    const Trained actual = trained(plan);
    for (const auto& [name, tensor] : expected.tensors) {
      const at::Tensor wide = tensor.to(at::kDouble);
      EXPECT_LE((actual.tensors.at(name).to(at::kDouble) - wide).norm().item<double>(),
                test::tolerance("bf16 attention").value * wide.norm().item<double>())
          << name;
    }
    if (plan.offloads) {
      EXPECT_LE(actual.kept_bytes, before - (kLayers - 5) * kInput);
    } else {
      EXPECT_LE(actual.kept_bytes, before);
      before = actual.kept_bytes;
    }
  }
}

}  // namespace
}  // namespace d9d::activation_plans_cuda_test
