// The peak memory of a rank under FSDP: its slices of parameters and gradients, the two largest adjacent units
// gathered, and the full gradient of one unit.
#include <mutex>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/qwen3_dense/model.h"

#include "tests/support/memory_peak.h"
#include "tests/support/ranks.h"

namespace d9d::test::fsdp_memory_test {
namespace {

// Layers of 3.4 MB and little else: the activations of four positions are negligible.
Qwen3DenseParameters wide_decoder() {
  return {.layer = {.hidden_size = 256,
                    .intermediate_size = 768,
                    .num_attention_heads = 4,
                    .num_key_value_heads = 4,
                    .head_dim = 64},
          .num_hidden_layers = 8,
          .max_position_ids = 4,
          .split_vocab_size = {{"all", 32}},
          .split_vocab_order = {"all"}};
}

struct Bytes {
  std::int64_t building = 0;  // the peak until all values are there
  std::int64_t peak = 0;
  std::int64_t between = 0;        // steps
  std::int64_t stage = 0;          // of all parameters
  std::int64_t largest_layer = 0;  // of a unit
};

Bytes measure(World& world, const FsdpConfig& config) {
  const DistContext context({.mesh = {.data_parallel_shard = world.size()}, .world = borrowed(world)});
  const auto backbone = make_module<Qwen3DenseModel>(wide_decoder(), DecoderStageOptions{.checkpointing = true});
  const auto model = make_decoder_for_causal_lm(backbone);
  parallelize_decoder(context, *backbone, {model->head.shared()}, config);
  Bytes bytes;
  for (const auto& [name, parameter] : model->named_parameters()) bytes.stage += parameter->global_numel() * 4;
  for (const auto& [name, parameter] : backbone->layers().front()->named_parameters()) {
    bytes.largest_layer += parameter->global_numel() * 4;
  }
  const MemoryPeak memory;
  model->materialize(at::kCPU);
  model->reset_parameters(/*base_seed=*/3);
  bytes.building = memory.peak_bytes();
  GradientManager gradients(context, *model, {}, {});
  const at::Tensor ids = at::arange(4).unsqueeze(0);
  for (int step = 0; step < 2; ++step) {
    for (const bool is_last : {false, true}) {
      gradients.begin_microbatch(is_last);
      const auto output = std::get<DecoderOutput<LanguageModellingHead>>(
          model(SequenceInput{ids}, DecoderForCausalLM::Shared{{ids, std::nullopt}, {ids}}));
      const at::Tensor loss = output.head.cross_entropy.mean();
      gradients.add_loss_with_weight(loss, at::ones({}));
      loss.backward();
      gradients.end_microbatch();
    }
    (void)gradients.reduce_and_clip({});
    gradients.reset();
    bytes.between = memory.live_bytes();
  }
  bytes.peak = memory.peak_bytes();
  return bytes;
}

Bytes measure_on(std::int64_t num_ranks, const FsdpConfig& config) {
  std::mutex mutex;
  Bytes largest;
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    const Bytes bytes = measure(world, config);
    const std::lock_guard lock(mutex);
    if (bytes.peak > largest.peak) largest = bytes;
  });
  return largest;
}

class FsdpMemory : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FsdpMemory, ::testing::Values(2, 4));

constexpr double kTolerance = 0.05;  // activations, padding, and the gradient of one parameter that is being reduced

// No rank ever holds the model, or a whole layer, to make its values.
TEST_P(FsdpMemory, Is_that_of_its_slices_while_the_model_is_built) {
  const Bytes bytes = measure_on(GetParam(), {});
  const double slices = static_cast<double>(bytes.stage) / static_cast<double>(GetParam());
  EXPECT_LE(static_cast<double>(bytes.building), (1 + kTolerance) * slices);
}

TEST_P(FsdpMemory, Is_slices_and_two_gathered_units_and_one_full_gradient) {
  for (const ExchangeMethod gather : {ExchangeMethod::kCommunicator, ExchangeMethod::kCopyEngine}) {
    const Bytes bytes = measure_on(GetParam(), {.gather = gather});
    const double expected = 2.0 * static_cast<double>(bytes.stage) / static_cast<double>(GetParam()) +
                            3.0 * static_cast<double>(bytes.largest_layer);
    EXPECT_NEAR(static_cast<double>(bytes.peak), expected, kTolerance * expected) << enum_name(gather);
  }
}

// Where the next forward fills memory: gathered units and one slot stay, slices of gradients do not.
TEST_P(FsdpMemory, Has_no_gradients_between_steps) {
  const Bytes bytes = measure_on(GetParam(), {});
  const double expected = static_cast<double>(bytes.stage) / static_cast<double>(GetParam()) +
                          3.0 * static_cast<double>(bytes.largest_layer);
  EXPECT_NEAR(static_cast<double>(bytes.between), expected, kTolerance * expected);
}

// At the first reduction of a step, where all full gradients and the slice of one unit's gradient exist: each later
// reduction frees a full gradient and adds a slice of it.
TEST_P(FsdpMemory, Has_all_full_gradients_when_it_reduces_once_a_step) {
  const Bytes bytes = measure_on(GetParam(), {.reduce_on_last_microbatch = true});
  const double slices = static_cast<double>(bytes.stage + bytes.largest_layer) / static_cast<double>(GetParam());
  const double expected = slices + 2.0 * static_cast<double>(bytes.largest_layer) + static_cast<double>(bytes.stage);
  EXPECT_NEAR(static_cast<double>(bytes.peak), expected, kTolerance * expected);
}

}  // namespace
}  // namespace d9d::test::fsdp_memory_test
