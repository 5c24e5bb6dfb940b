// Attention over ranks that each hold some of the positions, compared with one rank; and the sharding of inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/attention/sdpa.h"
#include "d9d/blocks/head/classification_head.h"
#include "d9d/blocks/head/embedding_head.h"
#include "d9d/blocks/hidden_states_aggregator/hidden_states_aggregator.h"
#include "d9d/blocks/regularization/dropout.h"
#include "d9d/core/mesh/device_mesh_parameters.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"
#include "d9d/parallelism/tensor/parallelize_tensor_parallel.h"

#include "tests/parallelism/one_rank.h"
#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::test::context_parallel_test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSequence = 12;
constexpr std::int64_t kHidden = 6;

struct Case {
  const char* name;
  SdpaParameters parameters;
  bool is_causal = true;
  bool has_mask = false;
  friend std::ostream& operator<<(std::ostream& out, const Case& each) { return out << each.name; }
};

class ContextParallelAttention : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Cores, ContextParallelAttention,
    ::testing::Values(Case{"torch", {.backend = TorchSdpaConfig{}}}, Case{"eager", {.backend = EagerSdpaConfig{}}},
                      Case{"torch_math", {.backend = TorchSdpaConfig{{{TorchSdpaKernel::kMath}}}}},
                      Case{"torch_not_causal", {.backend = TorchSdpaConfig{}}, false},
                      Case{"torch_masked", {.needs_attention_mask = true, .backend = TorchSdpaConfig{}}, true, true},
                      Case{"eager_masked", {.needs_attention_mask = true, .backend = EagerSdpaConfig{}}, true, true},
                      Case{"window_and_sinks", {.num_sinks = 4, .window_left = 4}},
                      Case{"window_both_ways", {.window_left = 3, .window_right = 2}, false}),
    [](const auto& each) { return each.param.name; });

using Chunks = std::vector<std::vector<std::int64_t>>;

TEST_P(ContextParallelAttention, Equals_one_rank) {
  for (const Chunks& chunks : {Chunks{{0}, {1}}, Chunks{{0}, {1}, {2}}, Chunks{{0, 3}, {1, 2}}}) {
    run_ranks(RankBackend::kThreads, std::ssize(chunks), [&](World& world) {
      const PositionCut positions(mesh_of(world, "cp"), chunks);
      const auto one = initialized(make_module<Sdpa>(GetParam().parameters));
      const auto cut = initialized(make_module<Sdpa>(GetParam().parameters));
      parallelize_context_parallel(*cut, positions);
      const at::Tensor q = values({2, kSequence, 4, 8}, 1).requires_grad_();
      const at::Tensor k = values({2, kSequence, 2, 8}, 2).requires_grad_();
      const at::Tensor v = values({2, kSequence, 2, 8}, 3).requires_grad_();
      const auto here = [&](const at::Tensor& x) {
        return context_parallel_shard(x.detach(), 1, positions).clone().requires_grad_();
      };
      const at::Tensor own_q = here(q), own_k = here(k), own_v = here(v);
      std::optional<at::Tensor> mask, own_mask;
      if (GetParam().has_mask) {
        mask = values({2, 1, kSequence, kSequence}, 4).gt(-0.5);
        own_mask = context_parallel_shard(*mask, 2, positions);
      }
      const kernels::SdpaOptions options{.causal = GetParam().is_causal};
      const at::Tensor expected = one->forward({.query = q, .key = k, .value = v, .mask = mask}, options);
      const at::Tensor output = cut->forward({.query = own_q, .key = own_k, .value = own_v, .mask = own_mask}, options);
      const at::Tensor grad = values(expected.sizes(), 5);
      (expected * grad).sum().backward();
      (output * context_parallel_shard(grad, 1, positions)).sum().backward();
      const auto expect = [&](const char* name, const at::Tensor& actual, const at::Tensor& whole) {
        expect_close(name, actual, context_parallel_shard(whole, 1, positions), tolerance("fp64"));
      };
      expect("output", output, expected);
      expect("query", own_q.grad(), q.grad());
      expect("key", own_k.grad(), k.grad());
      expect("value", own_v.grad(), v.grad());
    });
  }
}

// Pairs of a query and a key that it sees.
TEST(ContextParallelCut, Gives_each_rank_as_much_causal_attention) {
  for (std::int64_t num_ranks = 1; num_ranks <= 8; ++num_ranks) {
    const std::int64_t length = 6 * num_ranks;
    for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
      const DeviceMesh mesh("batch", {{"cp", num_ranks}}, lone_rank(rank, num_ranks));
      std::int64_t num_pairs = 0;
      for (const FlatRange& range : context_parallel_cut(mesh.slice({"cp"})).ranges(length)) {
        for (std::int64_t query = range.begin; query < range.end; ++query) num_pairs += query + 1;
      }
      EXPECT_EQ(num_pairs, length * (length + 1) / 2 / num_ranks) << rank << " of " << num_ranks;
    }
  }
}

TEST(ContextParallelCut, Divides_sequences_as_the_mesh_says) {
  for (const std::int64_t context : {1, 2, 3, 4}) {
    for (const std::int64_t tensor : {1, 2, 3, 4, 6}) {
      const DeviceMesh mesh("batch", {{"cp", context}, {"tp", tensor}}, lone_rank(0, context * tensor));
      const PositionCut cut = context_parallel_cut(mesh.slice({"cp"})).then(PositionCut(mesh.slice({"tp"})));
      const DeviceMeshParameters parameters{.context_parallel_shard = context, .tensor_parallel = tensor};
      EXPECT_EQ(parameters.position_divisor(), cut.divisor()) << context << " and " << tensor;
    }
  }
}

TEST(ContextParallelShard, Is_this_ranks_part_and_everything_on_one_rank) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const at::Tensor x = at::arange(12).view({2, 6});
    EXPECT_TRUE(at::equal(context_parallel_shard(x, -1, PositionCut(mesh_of(world, "cp"))), part(x, 1, world)));
    EXPECT_TRUE(context_parallel_shard(x, 1, PositionCut()).is_same(x));
  });
}

TEST(ContextParallelShard, Names_a_sequence_that_the_ranks_do_not_divide) {
  EXPECT_THAT(message_of<ConfigError>([] {
                run_ranks(RankBackend::kThreads, 2, [](World& world) {
                  (void)context_parallel_shard(at::zeros({2, 7}), 1, context_parallel_cut(mesh_of(world, "cp")));
                });
              }),
              HasSubstr("a multiple of 4 for the 2 context-parallel ranks, got 7 positions in dim 1 of [2, 7], a "
                        "remainder of 3"));
}

TEST(ContextParallel, Tells_dropout_which_positions_it_has) {
  struct Network : Module {
    const ModulePtr<Dropout> dropout = register_module<Dropout>("dropout", 0.5);
  };
  const at::Tensor ones = at::ones({2, kSequence, 3}, at::kDouble);
  const at::Tensor expected = initialized(make_module<Network>())->dropout(ones);
  run_ranks(RankBackend::kThreads, 3, [&](World& world) {
    const auto network = make_module<Network>();
    const PositionCut positions = context_parallel_cut(mesh_of(world, "cp"));
    parallelize_context_parallel(*network, positions);
    const at::Tensor own = initialized(network)->dropout(context_parallel_shard(ones, 1, positions));
    EXPECT_TRUE(at::equal(own, context_parallel_shard(expected, 1, positions)));
  });
}

// Two ranks of context parallelism with some chunks each, which two of tensor parallelism divide.
struct FourRanks {
  FourRanks(World& world, const Chunks& chunks)
      : mesh("dense", {{"cp", 2}, {"tp", 2}}, borrowed(world)), context(mesh.slice({"cp"}), chunks) {}
  [[nodiscard]] PositionRanks positions() const { return {.of_context = context, .of_shards = mesh.slice({"tp"})}; }
  const DeviceMesh mesh;
  const PositionCut context;
};
// A rank of tensor parallelism has one range of positions, and two with the last.
const std::vector<Chunks> kChunksOfTwo = {{{0}, {1}}, {{0, 3}, {1, 2}}, {{0, 3, 5}, {1, 2, 4}}};
constexpr double kNumLosses = 2;  // equal ones, of the ranks of context parallelism

// Two rows of positions, of which three are selected, in three of the four parts of each cut.
at::Tensor selected() {
  const at::Tensor chosen = at::tensor({std::int64_t{1}, std::int64_t{10}, kSequence + 5});
  return at::zeros({2 * kSequence}, at::kLong).index_fill_(0, chosen, 1).view({2, kSequence});
}

const at::Tensor& output_of(const ClassificationOutput& output) { return output.scores; }
const at::Tensor& output_of(const EmbeddingOutput& output) { return output.embeddings; }

template <class Head, class Config>
void expect_head_equals_one_rank(const Config& config, const Chunks& chunks, const PoolingShared& shared) {
  run_ranks(RankBackend::kThreads, 4, [&](World& world) {
    const FourRanks ranks(world, chunks);
    const auto one = initialized(make_module<Head>(config, kHidden));
    const auto cut = make_module<Head>(config, kHidden);
    parallelize_context_parallel(*cut, ranks.context);
    parallelize_tensor_parallel(*cut, ranks.mesh);
    initialized(cut);
    const PositionCut positions = ranks.positions().cut();
    const at::Tensor whole = values({2, kSequence, kHidden}, 1).requires_grad_();
    const at::Tensor own = positions.part_of(whole.detach(), 1).clone().requires_grad_();
    const at::Tensor expected = output_of(one(whole, shared));
    const at::Tensor output = output_of(cut(own, shared));
    const at::Tensor grad = values(expected.sizes(), 2);
    (expected * grad).sum().backward();
    ((output * grad).sum() / kNumLosses).backward();
    expect_close("output", output, expected, tolerance("fp64"));
    expect_close("input", own.grad(), positions.part_of(whole.grad(), 1), tolerance("fp64"));
    const auto theirs = one->named_parameters(), ours = cut->named_parameters();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const at::Tensor sum = ours[i].second->local().grad().clone();
      ranks.mesh.communicator()->all_reduce(sum, ReduceOp::kSum).wait();
      expect_close(ours[i].first, sum, theirs[i].second->local().grad(), tolerance("fp64"));
    }
  });
}

TEST(ContextParallelHeads, Of_pooled_positions_equal_one_rank_with_any_chunks) {
  for (const Chunks& chunks : kChunksOfTwo) {
    for (const PoolingShared& shared :
         {PoolingShared{}, PoolingShared{.pooling_mask = selected()}, PoolingShared{selected(), 3}}) {
      expect_head_equals_one_rank<ClassificationHead>(ClassificationHeadConfig{.num_labels = 3, .dropout = 0.4}, chunks,
                                                      shared);
      expect_head_equals_one_rank<EmbeddingHead>(EmbeddingHeadConfig{.embedding_dim = 5, .normalize = true}, chunks,
                                                 shared);
    }
  }
}

TEST(ContextParallelSnapshots, Equal_one_rank_with_any_chunks) {
  for (const Chunks& chunks : kChunksOfTwo) {
    run_ranks(RankBackend::kThreads, 4, [&](World& world) {
      const PositionRanks ranks = FourRanks(world, chunks).positions();
      const auto snapshot_of = [](const at::Tensor& x, const at::Tensor& mask, const PositionRanks& of) {
        HiddenStatesAggregator aggregator(HiddenStatesAggregationMode::kMean, mask, of);
        aggregator.add(x);
        return *aggregator.pack_with_snapshot(std::nullopt);
      };
      const at::Tensor whole = values({2, kSequence, kHidden}, 1).requires_grad_();
      const at::Tensor own = ranks.cut().part_of(whole.detach(), 1).clone().requires_grad_();
      const at::Tensor expected = snapshot_of(whole, selected(), {});
      const at::Tensor output = snapshot_of(own, ranks.of_context.part_of(selected(), 1), ranks);
      expected.square().sum().backward();
      (output.square().sum() / kNumLosses).backward();
      expect_close("output", output, expected, tolerance("fp64"));
      expect_close("input", own.grad(), ranks.cut().part_of(whole.grad(), 1), tolerance("fp64"));
    });
  }
}

}  // namespace
}  // namespace d9d::test::context_parallel_test
