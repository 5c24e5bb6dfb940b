// The memory that activation checkpointing of decoder layers saves: exact peak memory of forward and backward.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/models/decoder/decoder_with_head.h"

#include "tests/support/memory_peak.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::checkpointing_memory_test {
namespace {

constexpr std::int64_t kBatch = 2, kSequence = 24, kTokens = kBatch * kSequence;
constexpr std::int64_t kFloatBytes = 4;

// Peak of one microbatch whose gradients are added to those of an earlier one.
template <class Parameters>
std::int64_t peak_bytes(Parameters parameters, std::int64_t num_layers, bool enable_checkpointing) {
  parameters.num_hidden_layers = num_layers;
  parameters.max_position_ids = kSequence;
  const auto model = test::initialized(
      make_decoder_for_causal_lm(test::make_backbone(parameters, {.checkpointing = enable_checkpointing})), at::kFloat);
  const at::Tensor ids = at::arange(kTokens).remainder(23).reshape({kBatch, kSequence});
  const at::Tensor positions = at::arange(kSequence).unsqueeze(0).expand_as(ids);
  const auto microbatch = [&] {
    const auto output = std::get<DecoderOutput<LanguageModellingHead>>(
        model(SequenceInput{ids}, DecoderForCausalLM::Shared{{.position_ids = positions}, {ids}}));
    output.head.cross_entropy.sum().backward();
  };
  microbatch();
  const test::MemoryPeak memory;
  microbatch();
  EXPECT_EQ(memory.live_bytes(), 0);
  return memory.peak_bytes();
}

Qwen3MoEParameters moe_without_auxiliary_loss() {
  Qwen3MoEParameters parameters = test::tiny_moe();
  parameters.layer.router_auxiliary_loss_coefficient = 0.0;
  return parameters;
}

// What a dense layer saves for its backward, with shapes [T, ...]: the tensors that its operators read again.
std::int64_t saved_bytes(const Qwen3DenseLayerParameters& layer) {
  const std::int64_t hidden = layer.hidden_size, query = layer.num_attention_heads * layer.head_dim,
                     key = layer.num_key_value_heads * layer.head_dim;
  const std::int64_t norms = 2 * (hidden + 1);  // input, inverse norm
  const std::int64_t head_norms = query + layer.num_attention_heads + key + layer.num_key_value_heads;
  const std::int64_t attention = query + 2 * key + query + layer.num_attention_heads;  // q, k, v, output, log-sum-exp
  const std::int64_t projections = 2 * hidden;           // inputs of q, k, v and of gate, up
  const std::int64_t mlp = 3 * layer.intermediate_size;  // gate, up, their product
  return kTokens * (norms + head_norms + attention + projections + mlp) * kFloatBytes;
}

std::int64_t input_bytes(std::int64_t hidden_size) { return kTokens * hidden_size * kFloatBytes; }

TEST(CheckpointingMemory, Of_a_layer_is_what_its_backward_reads_without_and_its_input_with) {
  const Qwen3DenseParameters parameters = test::tiny_dense();
  const std::int64_t plain = peak_bytes(parameters, 1, false), checkpointed = peak_bytes(parameters, 1, true);
  EXPECT_EQ(peak_bytes(parameters, 8, false), plain + 7 * saved_bytes(parameters.layer));
  EXPECT_EQ(peak_bytes(parameters, 8, true), checkpointed + 7 * input_bytes(parameters.layer.hidden_size));
  EXPECT_LE(checkpointed, plain);
}

TEST(CheckpointingMemory, Of_a_layer_with_experts_is_its_input) {
  const Qwen3MoEParameters parameters = moe_without_auxiliary_loss();
  EXPECT_EQ(peak_bytes(parameters, 8, true),
            peak_bytes(parameters, 1, true) + 7 * input_bytes(parameters.layer.hidden_size));
}

}  // namespace
}  // namespace d9d::checkpointing_memory_test
