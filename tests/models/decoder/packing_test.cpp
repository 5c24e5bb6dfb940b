// Packed documents do not see each other: loss and gradients are those of one document a row.
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/core/tree/tree.h"
#include "d9d/data/sequences/token_sample.h"
#include "d9d/models/decoder/decoder_with_head.h"

#include "tests/support/block_oracle.h"
#include "tests/support/decoder_families.h"
#include "tests/support/gpu_test.h"
#include "tests/support/tiny_blocks.h"
#include "tests/support/tolerances.h"

namespace d9d::packing_test {
namespace {
using test::Tensors;

constexpr test::SmallDecoder kSizes = {.num_layers = 2, .num_attention_heads = 4, .num_key_value_heads = 2};

// A document of `length` positions of random ids.
TokenSample document(std::int64_t length) {
  return next_token_sample(at::randint(kSizes.vocabulary_size, {length + 1}, at::kLong));
}

// Documents one after the other, and padding up to `length` positions.
TokenSample packed(const std::vector<TokenSample>& documents, std::int64_t length) {
  std::vector<at::Tensor> ids, labels, positions;
  TokenSample sample;
  for (const TokenSample& each : documents) {
    ids.push_back(each.input_ids);
    labels.push_back(each.labels);
    positions.push_back(each.position_ids);
    sample.packed_lengths.push_back(each.input_ids.size(0));
    length -= each.input_ids.size(0);
  }
  if (length > 0) {
    ids.push_back(at::zeros({length}, at::kLong));
    labels.push_back(at::full({length}, kIgnoreIndex, at::kLong));
    positions.push_back(at::arange(length, at::kLong));
    sample.packed_lengths.push_back(length);
  }
  sample.input_ids = at::cat(ids);
  sample.labels = at::cat(labels);
  sample.position_ids = at::cat(positions);
  return sample;
}

// Adds the gradients of the summed loss, which it returns.
double train(const ModulePtr<DecoderForCausalLM>& model, const TokenBatch& batch) {
  const SequenceShared sequence{
      .position_ids = batch.position_ids, .hidden_states_agg_mask = std::nullopt, .packed = batch.packed};
  const auto output = std::get<DecoderOutput<LanguageModellingHead>>(
      model(SequenceInput{batch.input_ids}, DecoderForCausalLM::Shared{sequence, {batch.labels}}));
  const at::Tensor loss = output.head.cross_entropy.sum();
  loss.backward();
  return loss.item<double>();
}

TEST(Packing, Gives_loss_and_gradients_of_one_document_a_row) {
  at::manual_seed(5);
  const std::vector<TokenSample> documents = {document(5), document(3), document(7), document(1), document(6)};
  const std::vector<TokenSample> rows = {packed({documents[0], documents[1]}, 8),
                                         packed({documents[2], documents[3]}, 8), packed({documents[4]}, 8)};
  for (const test::DecoderFamily& family : test::decoder_families()) {
    for (const bool enable_checkpointing : {false, true}) {
      SCOPED_TRACE(family.name + (enable_checkpointing ? ", checkpointed" : ""));
      const auto make = [&] {
        return test::initialized(
            make_decoder_for_causal_lm(family.make_small(kSizes, {.checkpointing = enable_checkpointing})));
      };
      const auto together = make();
      const double loss = train(together, collate_fixed(rows));
      const auto alone = make();
      double expected = 0;
      for (const TokenSample& each : documents) expected += train(alone, collate_padded(std::vector{each}));
      EXPECT_NEAR(loss, expected, test::tolerance("fp64").value);
      const Tensors gradients = test::gradients_of(*together);
      for (const auto& [name, gradient] : test::gradients_of(*alone)) {
        EXPECT_LT((gradients.at(name) - gradient).abs().max().item<double>(), test::tolerance("fp64").value) << name;
      }
    }
  }
}

// The fused kernels of GPUs, in bfloat16.
class PackingCuda : public test::GpuTest {};

TEST_F(PackingCuda, Gives_loss_and_gradients_of_one_document_a_row) {
  at::manual_seed(5);
  const std::vector<TokenSample> documents = {document(37), document(20), document(64), document(1), document(40)};
  const std::vector<TokenSample> rows = {packed({documents[0], documents[1]}, 64), packed({documents[2]}, 64),
                                         packed({documents[3], documents[4]}, 64)};
  const auto make = [] {
    const auto model = make_decoder_for_causal_lm(test::decoder_family("qwen3_dense")
                                                      .make_small({.num_layers = 2,
                                                                   .hidden_size = 128,
                                                                   .intermediate_size = 256,
                                                                   .num_attention_heads = 4,
                                                                   .num_key_value_heads = 2,
                                                                   .head_dim = 64,
                                                                   .max_position_ids = 64},
                                                                  {}));
    model->to(at::kBFloat16);
    model->materialize(at::Device(at::kCUDA, 0));
    model->reset_parameters(1);
    return model;
  };
  const auto on_gpu = [](const TokenBatch& batch) {
    return tree_map([](const at::Tensor& leaf) { return leaf.to(at::Device(at::kCUDA, 0)); }, batch);
  };
  const auto together = make();
  const double loss = train(together, on_gpu(collate_fixed(rows)));
  const auto alone = make();
  double expected = 0;
  for (const TokenSample& each : documents) expected += train(alone, on_gpu(collate_padded(std::vector{each})));
  EXPECT_NEAR(loss / expected, 1.0, test::tolerance("bf16 loss").value);
  const Tensors gradients = test::gradients_of(*together);
  for (const auto& [name, gradient] : test::gradients_of(*alone)) {
    const at::Tensor ours = gradients.at(name).flatten().to(at::kDouble), theirs = gradient.flatten().to(at::kDouble);
    const double cosine = (ours.dot(theirs) / (ours.norm() * theirs.norm())).item<double>();
    EXPECT_GT(cosine, 1 - test::tolerance("bf16 angle").value) << name;
    EXPECT_NEAR((ours.norm() / theirs.norm()).item<double>(), 1.0, test::tolerance("bf16 norm").value) << name;
  }
}

}  // namespace
}  // namespace d9d::packing_test
