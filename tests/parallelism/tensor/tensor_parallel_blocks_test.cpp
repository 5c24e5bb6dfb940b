// Blocks over tensor-parallel ranks, compared with one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/attention/grouped_query_attention.h"
#include "d9d/blocks/embedding/split_token_embeddings.h"
#include "d9d/blocks/ffn/swiglu.h"
#include "d9d/blocks/head/classification_head.h"
#include "d9d/blocks/head/embedding_head.h"
#include "d9d/blocks/hidden_states_aggregator/hidden_states_aggregator.h"
#include "d9d/blocks/moe/moe_layer.h"
#include "d9d/modules/gradient_reduction.h"
#include "d9d/parallelism/tensor/parallelize_tensor_parallel.h"

#include "tests/parallelism/one_rank.h"
#include "tests/support/io_faults.h"

namespace d9d::test::tensor_parallel_blocks_test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kHidden = 6;
constexpr std::int64_t kSequence = 12;

GroupedQueryAttentionConfig gated_attention() {
  return {.hidden_size = kHidden,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 4,
          .qk_norm_eps = 1e-6,
          .has_output_gate = true,
          .has_sinks = true,
          .window_left = 2};
}

enum class Adapters : std::uint8_t { kNone, kTerms, kMagnitudes };

// With adapters of random factors.
ModulePtr<GroupedQueryAttention> attention_of(const GroupedQueryAttentionConfig& config, Adapters adapters) {
  auto attention = make_module<GroupedQueryAttention>(config);
  if (adapters == Adapters::kNone) return attention;
  for (const auto& linear : {attention->q_proj, attention->k_proj, attention->v_proj, attention->o_proj}) {
    linear->add_adapter({.rank = 2, .scale = 1.5, .has_magnitude = adapters == Adapters::kMagnitudes});
    linear->adapter()->b->weight->set_init(init::normal(0.5));
    if (adapters == Adapters::kMagnitudes) linear->adapter()->magnitude->weight->set_init(init::uniform(1.0));
  }
  return attention;
}

void expect_equals_one_rank_by(ExchangeMethod method, const GroupedQueryAttentionConfig& config, std::int64_t num_ranks,
                               Adapters adapters) {
  SCOPED_TRACE(enum_name(method));
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    const DeviceMesh mesh = mesh_of(world, "tp");
    const auto one = initialized(attention_of(config, adapters));
    const auto cut = attention_of(config, adapters);
    parallelize_tensor_parallel(*cut, mesh, "tp", {.exchange = method});
    initialized(cut);
    const RotaryTables tables{.cos = values({2, kSequence, 4}, 5), .sin = values({2, kSequence, 4}, 6)};
    const at::Tensor whole = values({2, kSequence, kHidden}, 1).requires_grad_();
    const at::Tensor shard = leaf_part(whole, 1, world);
    const at::Tensor expected = one(whole, tables);
    const at::Tensor output = cut(shard, tables);
    const at::Tensor grad = values({2, kSequence, kHidden}, 2);
    (expected * grad).sum().backward();
    (output * part(grad, 1, world)).sum().backward();
    expect_close("output", output, part(expected, 1, world), tolerance("fp64"));
    expect_close("input", shard.grad(), part(whole.grad(), 1, world), tolerance("fp64"));
    expect_gradients(*cut, *one, mesh, tolerance("fp64"));
  });
}

void expect_equals_one_rank(const GroupedQueryAttentionConfig& config, std::int64_t num_ranks = 2,
                            Adapters adapters = Adapters::kNone) {
  for (const ExchangeMethod method : {ExchangeMethod::kCommunicator, ExchangeMethod::kCopyEngine}) {
    expect_equals_one_rank_by(method, config, num_ranks, adapters);
  }
}

TEST(TensorParallelAttention, With_gate_sinks_norms_and_window_equals_one_rank) {
  expect_equals_one_rank(gated_attention());
}

// Of five ranks the last has no head, and takes part in the backward of the others all the same.
TEST(TensorParallelAttention, Trains_its_norms_alone_over_a_rank_without_heads) {
  for (const ExchangeMethod method : {ExchangeMethod::kCommunicator, ExchangeMethod::kCopyEngine}) {
    run_ranks(RankBackend::kThreads, 5, [&](World& world) {
      const DeviceMesh mesh = mesh_of(world, "tp");
      const auto one = initialized(make_module<GroupedQueryAttention>(gated_attention()));
      const auto cut = make_module<GroupedQueryAttention>(gated_attention());
      parallelize_tensor_parallel(*cut, mesh, "tp", {.exchange = method});
      initialized(cut);
      for (const auto& attention : {one, cut}) {
        attention->set_requires_grad(false);
        attention->q_norm->set_requires_grad(true);
      }
      const RotaryTables tables{.cos = values({2, 15, 4}, 5), .sin = values({2, 15, 4}, 6)};
      const at::Tensor whole = values({2, 15, kHidden}, 1), grad = values({2, 15, kHidden}, 2);
      (one(whole, tables) * grad).sum().backward();
      const at::Tensor output = cut(part(whole, 1, world), tables);
      ASSERT_TRUE(output.requires_grad()) << "rank " << world.rank();
      (output * part(grad, 1, world)).sum().backward();
      at::Tensor found = cut->q_norm->weight->local().grad();
      found = found.defined() ? found.clone() : at::zeros_like(cut->q_norm->weight->local());
      mesh.communicator("tp")->all_reduce(found, ReduceOp::kSum).wait();
      expect_close("q_norm", found, one->q_norm->weight->local().grad(), tolerance("fp64"));
    });
  }
}

TEST(TensorParallelAttention, Of_four_ranks_equals_one_rank) {
  GroupedQueryAttentionConfig config = gated_attention();
  config.num_key_value_heads = 4;
  expect_equals_one_rank(config, /*num_ranks=*/4);
}

TEST(TensorParallelAttention, With_biases_equals_one_rank) {
  GroupedQueryAttentionConfig config = gated_attention();
  config.has_qkv_bias = true;
  config.has_output_bias = true;
  expect_equals_one_rank(config);
}

struct Heads {
  std::int64_t num_queries, num_keys, num_ranks;
};
void PrintTo(const Heads& heads, std::ostream* out) {
  *out << heads.num_queries << " and " << heads.num_keys << " over " << heads.num_ranks;
}

class TensorParallelHeads : public ::testing::TestWithParam<Heads> {};
INSTANTIATE_TEST_SUITE_P(Of, TensorParallelHeads,
                         ::testing::Values(Heads{4, 1, 2},   // one head of keys for all
                                           Heads{8, 2, 4},   // two ranks share a head of keys
                                           Heads{12, 4, 3},  // a rank's query heads belong to two, unevenly
                                           Heads{3, 3, 2}, Heads{6, 2, 4}, Heads{5, 5, 3}, Heads{7, 7, 4},
                                           Heads{6, 3, 2}, Heads{3, 1, 4}),  // a rank has no query head
                         [](const auto& heads) {
                           return cat(heads.param.num_queries, "_", heads.param.num_keys, "_over_",
                                      heads.param.num_ranks);
                         });

GroupedQueryAttentionConfig attention_of(const Heads& heads) {
  GroupedQueryAttentionConfig config = gated_attention();
  config.num_attention_heads = heads.num_queries;
  config.num_key_value_heads = heads.num_keys;
  return config;
}

TEST_P(TensorParallelHeads, That_the_ranks_do_not_divide_equal_one_rank) {
  GroupedQueryAttentionConfig config = attention_of(GetParam());
  expect_equals_one_rank(config, GetParam().num_ranks);
  config.has_qkv_bias = true;
  config.has_output_bias = true;
  expect_equals_one_rank(config, GetParam().num_ranks);
}

TEST_P(TensorParallelHeads, That_the_ranks_do_not_divide_equal_one_rank_with_adapters) {
  GroupedQueryAttentionConfig config = attention_of(GetParam());
  config.has_qkv_bias = true;
  for (const Adapters adapters : {Adapters::kTerms, Adapters::kMagnitudes}) {
    expect_equals_one_rank(config, GetParam().num_ranks, adapters);
  }
}

TEST_P(TensorParallelHeads, Compute_no_keys_that_other_ranks_need) {
  const auto [num_queries, num_keys, num_ranks] = GetParam();
  if (num_keys % num_ranks == 0) GTEST_SKIP();
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    const auto attention = make_module<GroupedQueryAttention>(attention_of(GetParam()));
    parallelize_tensor_parallel(*attention, mesh_of(world, "tp"));
    initialized(attention);
    const std::int64_t queries = attention->q_proj->weight->local().size(0) / attention->config.head_dim;
    const std::int64_t group = num_queries / num_keys;
    const std::int64_t keys = attention->k_proj(values({1, 1, kHidden}, 1)).size(-1) / attention->config.head_dim;
    EXPECT_LE(keys, (queries + group - 1) / group + 1);
    EXPECT_EQ(keys == 0, queries == 0);
  });
}

void expect_equals_one_rank_by(ExchangeMethod method, const SwiGLUConfig& config, bool checkpoints_down) {
  SCOPED_TRACE(enum_name(method));
  run_ranks(RankBackend::kThreads, 4, [&](World& world) {
    const DeviceMesh mesh = mesh_of(world, "tp");
    const auto one = initialized(make_module<SwiGLU>(config));
    const auto cut = make_module<SwiGLU>(config);
    parallelize_tensor_parallel(*cut, mesh, "tp", {.exchange = method});
    cut->down_proj->set_activation_checkpointing(checkpoints_down);
    initialized(cut);
    const at::Tensor whole = values({2, kSequence, kHidden}, 1).requires_grad_();
    const at::Tensor shard = leaf_part(whole, 1, world);
    const at::Tensor expected = one(whole);
    const at::Tensor output = cut(shard);
    const at::Tensor grad = values({2, kSequence, kHidden}, 2);
    (expected * grad).sum().backward();
    (output * part(grad, 1, world)).sum().backward();
    expect_close("output", output, part(expected, 1, world), tolerance("fp64"));
    expect_close("input", shard.grad(), part(whole.grad(), 1, world), tolerance("fp64"));
    expect_gradients(*cut, *one, mesh, tolerance("fp64"));
  });
}

void expect_equals_one_rank(const SwiGLUConfig& config, bool checkpoints_down = false) {
  for (const ExchangeMethod method : {ExchangeMethod::kCommunicator, ExchangeMethod::kCopyEngine}) {
    expect_equals_one_rank_by(method, config, checkpoints_down);
  }
}

// Five features over four ranks: 2, 2, 1, 0.
// What a job that sleeps closes. Longer sequences open larger memory.
TEST(TensorParallelSwiGLU, Gives_the_memory_of_copies_back) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const auto cut = make_module<SwiGLU>(SwiGLUConfig{.hidden_size = kHidden, .intermediate_size = 5});
    parallelize_tensor_parallel(*cut, mesh_of(world, "tp"), "tp", {.exchange = ExchangeMethod::kCopyEngine});
    initialized(cut);
    const auto reductions = gradient_reductions(*cut);
    ASSERT_EQ(reductions.size(), 1U);
    const auto after_forward = [&](std::int64_t positions) {
      (void)cut(part(values({1, positions, kHidden}, 1), 1, world));
      return reductions[0]->num_closings();
    };
    EXPECT_EQ(after_forward(4), 0);
    EXPECT_EQ(after_forward(64), 1);
    reductions[0]->close();
    EXPECT_EQ(after_forward(64), 2);
  });
}

TEST(TensorParallelSwiGLU, Of_a_width_that_divides_unevenly_equals_one_rank) {
  expect_equals_one_rank(SwiGLUConfig{.hidden_size = kHidden, .intermediate_size = 5});
}

TEST(TensorParallelSwiGLU, With_biases_equals_one_rank) {
  for (const bool checkpoints_down : {false, true}) {
    expect_equals_one_rank(SwiGLUConfig{.hidden_size = kHidden, .intermediate_size = 5, .has_bias = true},
                           checkpoints_down);
  }
}

// The numbers [2, 4] for the positions of each of four ranks: [2, S].
at::Tensor of_four_ranks(at::IntArrayRef numbers) {
  return at::tensor(numbers, at::kLong).view({2, 4}).repeat_interleave(kSequence / 4, /*dim=*/1);
}

// The last of the four ranks has no position that is data.
TEST(TensorParallelMoE, With_a_shared_expert_padding_and_an_auxiliary_loss_equals_one_rank) {
  const MoELayerConfig config{.hidden_size = kHidden,
                              .intermediate_size = 5,
                              .num_experts = 4,
                              .top_k = 2,
                              .shared_expert = SharedExpertParameters{.intermediate_size = 7, .enable_gate = true},
                              .grouped_mm_backend = std::nullopt,
                              .auxiliary_loss_coefficient = 0.3};
  const at::Tensor is_real = of_four_ranks({1, 1, 1, 0, 1, 1, 0, 0});
  const auto indices = [](const at::Tensor& is_one) { return is_one.reshape({-1}).nonzero().squeeze(1); };
  run_ranks(RankBackend::kThreads, 4, [&](World& world) {
    const DeviceMesh mesh = mesh_of(world, "tp");
    const auto one = initialized(make_module<MoELayer>(config));
    const auto cut = make_module<MoELayer>(config);
    parallelize_tensor_parallel(*cut, mesh);
    cut->set_count_ranks({.of_tokens = mesh.slice({"tp"})});
    initialized(cut);
    const at::Tensor whole = values({2, kSequence, kHidden}, 1).requires_grad_();
    const at::Tensor shard = leaf_part(whole, 1, world);
    const MoEOutput expected = one(whole, std::optional(indices(is_real)));
    const MoEOutput output = cut(shard, std::optional(indices(part(is_real, 1, world))));
    const at::Tensor grad = values({2, kSequence, kHidden}, 2);
    ((expected.hidden_states * grad).sum() + *expected.auxiliary_loss).backward();
    ((output.hidden_states * part(grad, 1, world)).sum() + *output.auxiliary_loss).backward();
    expect_close("output", output.hidden_states, part(expected.hidden_states, 1, world), tolerance("fp64"));
    expect_close("auxiliary loss", *output.auxiliary_loss, *expected.auxiliary_loss, tolerance("fp64"));
    expect_close("input", shard.grad(), part(whole.grad(), 1, world), tolerance("fp64"));
    expect_gradients(*cut, *one, mesh, tolerance("fp64"));
    EXPECT_TRUE(
        at::equal(cut->step_statistics().at("tokens_per_expert"), one->step_statistics().at("tokens_per_expert")));
  });
}

const at::Tensor& output_of(const ClassificationOutput& output) { return output.scores; }
const at::Tensor& output_of(const EmbeddingOutput& output) { return output.embeddings; }

template <class Head, class Config>
void expect_head_equals_one_rank(const Config& config) {
  const at::Tensor mask = of_four_ranks({0, 1, 0, 1, 0, 0, 1, 0});
  for (const PoolingShared& shared : {PoolingShared{}, PoolingShared{mask}, PoolingShared{mask, kSequence * 3 / 4}}) {
    run_ranks(RankBackend::kThreads, 4, [&](World& world) {
      const DeviceMesh mesh = mesh_of(world, "tp");
      const auto one = initialized(make_module<Head>(config, kHidden));
      const auto cut = make_module<Head>(config, kHidden);
      parallelize_tensor_parallel(*cut, mesh);
      initialized(cut);
      const at::Tensor whole = values({2, kSequence, kHidden}, 1).requires_grad_();
      const at::Tensor shard = leaf_part(whole, 1, world);
      const at::Tensor expected = output_of(one(whole, shared));
      const at::Tensor output = output_of(cut(shard, shared));
      const at::Tensor grad = values(expected.sizes(), 2);
      (expected * grad).sum().backward();
      (output * grad).sum().backward();  // the same loss on all ranks
      expect_close("output", output, expected, tolerance("fp64"));
      expect_close("input", shard.grad(), part(whole.grad(), 1, world), tolerance("fp64"));
      expect_gradients(*cut, *one, mesh, tolerance("fp64"));
    });
  }
}

TEST(TensorParallelHeads, Of_pooled_positions_equal_one_rank) {
  expect_head_equals_one_rank<ClassificationHead>(ClassificationHeadConfig{.num_labels = 3, .dropout = 0.4});
  expect_head_equals_one_rank<EmbeddingHead>(EmbeddingHeadConfig{.embedding_dim = 5, .normalize = true});
  expect_head_equals_one_rank<EmbeddingHead>(EmbeddingHeadConfig{.normalize = true});
}

TEST(TensorParallelHeads, Say_that_a_mask_does_not_cover_all_positions) {
  EXPECT_THAT(message_of<ConfigError>([] {
                run_ranks(RankBackend::kThreads, 2, [&](World& world) {
                  const auto head = make_module<EmbeddingHead>(EmbeddingHeadConfig{}, kHidden);
                  parallelize_tensor_parallel(*head, mesh_of(world, "tp"));
                  (void)head(values({1, 2, kHidden}, 1), PoolingShared{at::ones({1, 2}, at::kLong)});
                });
              }),
              HasSubstr("of all 2 ranks that share a sequence, [1, 4], got [1, 2]"));
}

TEST(TensorParallelSnapshots, Equal_one_rank) {
  const at::Tensor mask = of_four_ranks({1, 1, 0, 1, 0, 0, 0, 0});
  run_ranks(RankBackend::kThreads, 4, [&](World& world) {
    const auto snapshot_of = [&](const at::Tensor& x, const PositionRanks& ranks) {
      HiddenStatesAggregator aggregator(HiddenStatesAggregationMode::kMean, mask, ranks);
      aggregator.add(x);
      return *aggregator.pack_with_snapshot(std::nullopt);
    };
    const at::Tensor whole = values({2, kSequence, kHidden}, 1).requires_grad_();
    const at::Tensor shard = leaf_part(whole, 1, world);
    const at::Tensor expected = snapshot_of(whole, {});
    const at::Tensor output = snapshot_of(shard, {.of_shards = mesh_of(world, "tp").slice({"tp"})});
    expected.square().sum().backward();
    output.square().sum().backward();
    expect_close("output", output, expected, tolerance("fp64"));
    expect_close("input", shard.grad(), part(whole.grad(), 1, world), tolerance("fp64"));
  });
}

// A block that the library does not have.
class OwnBlock : public Module {
 public:
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const {
    return context_->row_linear(at::tanh(context_->column_linears(norm(x), {up})[0]), down);
  }
  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t /*num_ranks*/) const override {
    return TensorPlan{.parameters = {{up->weight, Shard{0}}, {up->bias, Shard{0}}, {down->weight, Shard{1}}}};
  }
  void set_tensor_parallel_context(TensorParallelContextPtr context) override { context_ = std::move(context); }

  const ModulePtr<RMSNorm> norm = register_module<RMSNorm>("norm", RMSNormConfig{kHidden});
  const ModulePtr<Linear> up = register_module<Linear>("up", LinearConfig{kHidden, 4, true});
  const ModulePtr<Linear> down = register_module<Linear>("down", LinearConfig{4, kHidden});

 private:
  TensorParallelContextPtr context_ = std::make_shared<LocalTensorParallelContext>();
};

TEST(TensorPlan, Of_a_block_of_ones_own_is_carried_out_with_those_of_its_children) {
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DeviceMesh mesh = mesh_of(world, "tp");
    const auto one = initialized(make_module<OwnBlock>());
    const auto cut = make_module<OwnBlock>();
    parallelize_tensor_parallel(*cut, mesh);
    initialized(cut);
    EXPECT_EQ(cut->down->weight->placements(), Placements{Shard{1}});
    EXPECT_EQ(cut->norm->weight->gradient_placements(), Placements{Partial{ReduceOp::kSum}});
    const at::Tensor whole = values({2, kSequence, kHidden}, 1).requires_grad_();
    const at::Tensor shard = leaf_part(whole, 1, world);
    const at::Tensor expected = one(whole);
    const at::Tensor output = cut(shard);
    expected.square().sum().backward();
    output.square().sum().backward();
    expect_close("output", output, part(expected, 1, world), tolerance("fp64"));
    expect_close("input", shard.grad(), part(whole.grad(), 1, world), tolerance("fp64"));
    expect_gradients(*cut, *one, mesh, tolerance("fp64"));
  });
}

TEST(TensorPlan, Leaves_modules_without_one_as_they_are) {
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const auto linear = make_module<Linear>(LinearConfig{kHidden, 4});
    parallelize_tensor_parallel(*linear, mesh_of(world, "tp"));
    EXPECT_TRUE(linear->weight->mesh().axes().empty());
  });
}

std::string error_on_ranks(std::int64_t num_ranks, const std::function<void(const DeviceMesh&)>& body) {
  return message_of<ConfigError>(
      [&] { run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) { body(mesh_of(world, "tp")); }); });
}

TEST(TensorParallelErrors, Name_what_the_ranks_do_not_divide) {
  EXPECT_THAT(error_on_ranks(2,
                             [](const DeviceMesh& mesh) {
                               const auto embedding = make_module<SplitTokenEmbeddings>(
                                   VocabularySplits{.sizes = {{"all", 8}}, .order = {"all"}}, kHidden);
                               parallelize_tensor_parallel(*embedding, mesh);
                               (void)initialized(embedding)(at::zeros({1, 3}, at::kLong));
                             }),
              HasSubstr("positions are a multiple of the tensor-parallel ranks = 2, got [1, 3, 6]"));
}

}  // namespace
}  // namespace d9d::test::tensor_parallel_blocks_test
