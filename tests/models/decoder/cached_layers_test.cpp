// Layers of a user in generation with a cache: it equals generation without one, which they get where no cache serves
// them.
#include <functional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/blocks/attention/grouped_query_attention.h"
#include "d9d/models/decoder/generate.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/decoder/pre_norm_decoder.h"
#include "d9d/testing/ranks.h"

#include "tests/support/io_faults.h"
#include "tests/support/tiny_blocks.h"
#include "tests/support/tolerances.h"

namespace d9d::cached_layers_test {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using Ids = std::vector<std::int64_t>;

struct Kind {
  bool is_causal = true;
  bool is_packed = true;         // gives its attention SequenceShared::packed
  bool has_convolution = false;  // of two positions, for which no cache is built
  int num_calls = 1;             // of each layer in a forward
  bool has_one_layer = false;    // with the names of all
};

class Layer final : public DecoderLayer {
 public:
  Layer(const GroupedQueryAttentionConfig& attention, const Kind& kind)
      : attention_(register_module<GroupedQueryAttention>("attention", attention)), kind_(kind) {}
  [[nodiscard]] DecoderLayerOutput forward(const at::Tensor& hidden_states,
                                           const LayerContext& context) const override {
    at::Tensor mixed = hidden_states;
    if (kind_.has_convolution) mixed = mixed + at::constant_pad_nd(mixed, {0, 0, 1, -1});
    const std::optional<PackedSequences> packed = kind_.is_packed ? context.shared.packed : std::nullopt;
    return {.hidden_states = hidden_states + attention_(mixed, context.tables, std::optional<at::Tensor>(), packed),
            .auxiliary_loss = std::nullopt};
  }
  [[nodiscard]] bool is_cacheable() const override { return !kind_.has_convolution; }

 private:
  const ModulePtr<GroupedQueryAttention> attention_;
  const Kind kind_;
};

class Decoder final : public PreNormDecoder {
 public:
  Decoder(const PreNormDecoderConfig& configuration, const MakeLayer& make_layer, int num_calls)
      : PreNormDecoder(configuration, {}, make_layer), num_calls_(num_calls) {}
  [[nodiscard]] SequenceTransfer forward(const SequenceStageInput& input, const SequenceShared& shared) const override {
    at::Tensor hidden = embed_tokens(std::get<SequenceInput>(input).input_ids);
    const LayerContext context{.tables = rope_provider(shared.position_ids), .shared = shared};
    for (int call = 0; call < num_calls_; ++call) {
      for (const auto& layer : layers()) hidden = layer(hidden, context).hidden_states;
    }
    return {.hidden_states = norm(hidden), .hidden_states_snapshot = std::nullopt, .auxiliary_loss = std::nullopt};
  }

 private:
  const int num_calls_;
};

ModulePtr<DecoderForCausalLM> model_of(const Kind& kind, const DistContext& context) {
  const auto sizes = test::small_parameters<Qwen3DenseParameters>({.num_layers = 2, .max_position_ids = 32});
  GroupedQueryAttentionConfig attention = qk_norm_attention_config(sizes.layer);
  attention.is_causal = kind.is_causal;
  ModulePtr<DecoderLayer> first = nullptr;
  const auto make_layer = [&](std::int64_t) {
    if (!first || !kind.has_one_layer) first = make_module<Layer>(attention, kind);
    return first;
  };
  const auto backbone = make_module<Decoder>(pre_norm_decoder_config(sizes), make_layer, kind.num_calls);
  auto model = make_decoder_for_causal_lm(backbone);
  model->to(at::kDouble);
  if (!kind.has_one_layer) parallelize_decoder(context, *backbone, {model->head.shared()});
  model->materialize(at::kCPU);
  model->reset_parameters(/*base_seed=*/2);
  for (const auto& [name, parameter] : model->named_parameters()) {
    if (name.find("norm") == std::string::npos) parameter->stored().detach().mul_(3);  // so that keys matter
  }
  return model;
}

// The likeliest tokens by forwards of whole sequences.
GeneratedSequence expected(const ModulePtr<DecoderForCausalLM>& model, Ids tokens, const GenerateOptions& options) {
  const at::NoGradGuard no_grad;
  const auto decoder = one_piece_decoder(model);
  GeneratedSequence sequence;
  for (std::int64_t i = 0; i < options.num_tokens; ++i) {
    const at::Tensor logits = decoder->last_logits(at::tensor(tokens, at::kLong).unsqueeze(0), options.sequence_ranks);
    tokens.push_back(logits.argmax().item<std::int64_t>());
    sequence.ids.push_back(tokens.back());
    sequence.log_probs.push_back(logits.log_softmax(-1)[tokens.back()].item<double>());
  }
  return sequence;
}

void on_each_layout(const Kind& kind,
                    const std::function<void(const ModulePtr<DecoderForCausalLM>&, const GenerateOptions&)>& body) {
  const auto on_ranks = [&](const DistContext& context) {
    body(model_of(kind, context), {.num_tokens = 12, .ranks = context.mesh(MeshDomain::kFlat)});
  };
  testing::run_ranks(DeviceMeshParameters{}, on_ranks);
  if (!kind.has_one_layer) testing::run_ranks({.data_parallel_shard = 2}, on_ranks);
}

const std::vector<Ids> kPrompts = {{5, 6, 7}, {1}, {2, 20, 3, 19, 4, 18}};

void expect_cached(const Kind& kind) {
  on_each_layout(kind, [](const ModulePtr<DecoderForCausalLM>& model, const GenerateOptions& options) {
    for (int time = 0; time < 2; ++time) {  // the first leaves no cache behind
      const auto results = generate_batch(model, kPrompts, options);
      for (std::size_t i = 0; i < kPrompts.size(); ++i) {
        const GeneratedSequence alone = expected(model, kPrompts[i], options);
        EXPECT_EQ(results[i].ids, alone.ids) << i;
        EXPECT_THAT(results[i].log_probs, Pointwise(DoubleNear(test::tolerance("fp64").value), alone.log_probs)) << i;
      }
    }
  });
}

void expect_not_cached(const Kind& kind, const std::string& why) {
  on_each_layout(kind, [&](const ModulePtr<DecoderForCausalLM>& model, const GenerateOptions& options) {
    for (const Ids& prompt : kPrompts) {
      EXPECT_EQ(generate(model, prompt, options), expected(model, prompt, options).ids);
    }
    EXPECT_THAT(test::message_of<ConfigError>([&] { (void)generate_batch(model, kPrompts, options); }), HasSubstr(why));
    EXPECT_EQ(generate(model, {3}, options), expected(model, {3}, options).ids);
  });
}

TEST(CachedLayers, May_be_called_several_times_in_a_forward) { expect_cached({.num_calls = 2}); }

TEST(CachedLayers, May_have_several_names) { expect_cached({.has_one_layer = true}); }

TEST(CachedLayers, Attend_to_later_positions_without_a_cache) {
  expect_not_cached({.is_causal = false}, "got attention to later positions. Use generate()");
}

TEST(CachedLayers, Take_single_sequences_without_a_cache) {
  expect_not_cached({.is_packed = false}, "got sequences that are not packed. Use generate()");
}

TEST(CachedLayers, Mix_positions_in_another_way_without_a_cache) {
  expect_not_cached({.has_convolution = true}, "all of whose layers attend through Sdpa");
}

}  // namespace
}  // namespace d9d::cached_layers_test
