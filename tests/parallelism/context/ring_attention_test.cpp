// Ring attention over ranks that each hold some positions, compared with one rank; and the blocks of pairs it computes.
#include "d9d/parallelism/context/ring_attention.h"

#include <algorithm>
#include <limits>
#include <random>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/parallelism/context/parallelize_context_parallel.h"

#include "tests/parallelism/exchange_ranks.h"

namespace d9d::test::ring_attention_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
class RingAttentionOf : public ExchangeTest<PeerBlockExchange> {};
INSTANTIATE_TEST_SUITE_P(Nccl, RingAttentionOf, kExchangeGpus, name_of_ranks);
INSTANTIATE_TEST_SUITE_P(Backends, RingAttentionOf, kExchangeBackends, name_of_ranks);

// Random, because the gradients of smooth values cancel among the blocks, whose rounding stays.
at::Tensor random_values(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

struct Case {
  const char* name;
  kernels::SdpaOptions options;
  bool has_sinks = false;
  std::int64_t num_kv_heads = 2;
  bool is_balanced = true;
  std::optional<int> num_bounds = {};  // between packed documents, beside those of the rows
};

// Documents of two rows, with bounds at random positions, and, if there are many, at edges of chunks.
PackedSequences documents(std::int64_t length, int num_bounds, at::Device device) {
  std::mt19937 generator(static_cast<std::mt19937::result_type>(num_bounds));
  std::vector<std::int64_t> bounds = {0, length, 2 * length};
  for (int i = 0; i < num_bounds; ++i) {
    bounds.push_back(i % 3 < 2 ? static_cast<std::int64_t>(generator()) % (2 * length + 1) : length / 2 * (i % 5));
  }
  std::ranges::sort(bounds);
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < bounds.size(); ++i) longest = std::max(longest, bounds[i] - bounds[i - 1]);
  return {.cu_seqlens = at::tensor(bounds, at::kInt).to(device), .max_length = longest};
}

// In float64 on CPUs. On GPUs in bfloat16, whose distance from float64 is compared with that of one rank.
TEST_P(RingAttentionOf, Equals_one_rank) {
  on_ranks([](World& world, PeerBlockExchange& exchange) {
    const bool is_gpu = world.device().is_cuda();
    const std::int64_t num_ranks = world.size(), length = (is_gpu ? 256 : 6) * num_ranks, features = is_gpu ? 128 : 8;
    const std::shared_ptr<const PeerBlockExchange> shared(std::shared_ptr<void>(), &exchange);
    for (const Case& each :
         {Case{"causal", {.causal = true}}, Case{"full", {}}, Case{"sinks", {.causal = true, .scale = 0.3}, true},
          Case{"softcap", {.causal = true, .softcap = 3.0}}, Case{"multi query", {.causal = true}, false, 1},
          Case{"one after another", {.causal = true}, false, 2, false},
          Case{"neighbours", {.causal = true, .window_left = 1}},
          Case{"window", {.causal = true, .window_left = 4}, true},
          Case{"window of some chunks", {.causal = true, .window_left = 9}},
          Case{"window of chunks and a part", {.causal = true, .window_left = 7}},
          Case{"window of large chunks", {.causal = true, .window_left = 300}, true},
          Case{"window one after another", {.causal = true, .window_left = 8}, false, 2, false},
          Case{"whole rows", {.causal = true}, false, 2, true, 0}, Case{"packed", {.causal = true}, false, 2, true, 3},
          Case{"packed, full", {}, false, 2, true, 3}, Case{"packed, sinks", {.causal = true}, true, 2, true, 5},
          Case{"packed, softcap", {.causal = true, .softcap = 3.0}, false, 2, true, 6},
          Case{"packed one after another", {.causal = true}, false, 2, false, 9},
          Case{"many packed", {.causal = true}, false, 1, true, 24}}) {
      const DeviceMesh mesh = mesh_of(world, "cp");
      const PositionCut positions = each.is_balanced ? context_parallel_cut(mesh) : PositionCut(mesh);
      // Computes on one rank, or this rank's part.
      const auto run = [&](bool is_ring, at::ScalarType dtype) {
        const auto here = [&](const at::Tensor& x) {
          const at::Tensor own = is_ring ? positions.part_of(x, 1) : x;
          return own.to(at::TensorOptions(world.device()).dtype(dtype)).clone().requires_grad_();
        };
        const auto rounded = [&](const at::Tensor& x) { return is_gpu ? x.to(at::kBFloat16) : x; };
        const at::Tensor q = here(rounded(random_values({2, length, 4, features}, 1))),
                         k = here(rounded(random_values({2, length, each.num_kv_heads, features}, 2))),
                         v = here(rounded(random_values({2, length, each.num_kv_heads, features}, 3)));
        const at::Tensor sinks =
            random_values({4}, 4).to(world.device(), is_gpu ? at::kFloat : at::kDouble).requires_grad_();
        kernels::SdpaInputs inputs{
            .query = q, .key = k, .value = v, .sinks = each.has_sinks ? std::optional(sinks) : std::nullopt};
        if (each.num_bounds) inputs.packed = documents(length, *each.num_bounds, world.device());
        EXPECT_TRUE(!is_ring || exchange.fits({k, v})) << exchange.reason();
        const at::Tensor out = is_ring ? ring_attention(inputs, each.options, {}, positions, shared)
                                       : kernels::scaled_dot_product_attention(inputs, each.options);
        out.backward(here(rounded(random_values({2, length, 4, features}, 5))).detach());
        std::vector<at::Tensor> results = {out.detach(), q.grad(), k.grad(), v.grad()};
        if (!is_ring) {
          for (at::Tensor& whole : results) whole = positions.part_of(whole, 1);
        }
        if (!each.has_sinks) return results;
        results.push_back(sinks.grad());
        if (is_ring) world.communicator(group_of(world, "all"))->all_reduce(results.back(), ReduceOp::kSum).wait();
        return results;
      };
      const auto exact = run(false, at::kDouble), ring = run(true, is_gpu ? at::kBFloat16 : at::kDouble);
      const auto one = is_gpu ? run(false, at::kBFloat16) : exact;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        if (!is_gpu) {
          expect_close(cat(each.name, " ", i), ring[i], exact[i], tolerance("fp64"));
          continue;
        }
        const auto error = [&](const at::Tensor& x) { return (x.to(at::kDouble) - exact[i]).norm().item<double>(); };
        // The gradients of sinks are four sums, whose errors may cancel on one rank.
        const double least = i < 4 ? 0 : tolerance("bf16 attention").value * exact[i].norm().item<double>();
        EXPECT_LE(error(ring[i]), std::max(least, tolerance("bf16 layout").value * error(one[i])))
            << each.name << " " << i;
      }
    }
    world.communicator(group_of(world, "all"))->barrier();  // who returns while others still wait is gone for them
  });
}

TEST(RingBlocks, Of_the_balanced_cut_are_half_of_all_pairs_and_as_many_on_each_rank) {
  run_ranks(RankBackend::kThreads, 4, [](World& world) {
    const PositionCut positions = context_parallel_cut(mesh_of(world, "cp"));
    EXPECT_THAT(ring_blocks(positions, 16, 2, 2, {.causal = true}), ElementsAre(RingBlock{{0, 4}, {0, 4}, true}));
    EXPECT_THAT(ring_blocks(positions, 16, 2, 1, {.causal = true}), ElementsAre(RingBlock{{0, 4}, {0, 2}}));
    EXPECT_THAT(ring_blocks(positions, 16, 2, 3, {.causal = true}), ElementsAre(RingBlock{{2, 4}, {0, 4}}));
    EXPECT_THAT(ring_blocks(positions, 16, 2, 3, {}), ElementsAre(RingBlock{{0, 4}, {0, 4}}));
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      std::int64_t num_pairs = 0;
      for (std::int64_t other = 0; other < 4; ++other) {
        for (const RingBlock& block : ring_blocks(positions, 16, rank, other, {.causal = true})) {
          num_pairs += block.is_causal ? 10 : block.queries.numel() * block.keys.numel();
        }
      }
      EXPECT_EQ(num_pairs, 16 * 17 / 2 / 4);
    }
  });
}

TEST(RingBlocks, Of_one_range_after_another_are_all_keys_of_earlier_ranks) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const PositionCut positions(mesh_of(world, "cp"));
    EXPECT_THAT(ring_blocks(positions, 8, 0, 1, {.causal = true}), IsEmpty());
    EXPECT_THAT(ring_blocks(positions, 8, 1, 0, {.causal = true}), ElementsAre(RingBlock{{0, 4}, {0, 4}}));
  });
}

// The positions of a rank, in the order in which it has them.
std::vector<std::int64_t> positions_of(const PositionCut& positions, std::int64_t length, std::int64_t rank) {
  std::vector<std::int64_t> all;
  for (const FlatRange& range : positions.ranges(length, rank)) {
    for (std::int64_t position = range.begin; position < range.end; ++position) all.push_back(position);
  }
  return all;
}

// Kernels take no window of more queries than keys.
TEST(RingBlocks, Of_a_window_have_each_pair_in_it_once_and_no_query_without_a_key) {
  constexpr std::int64_t kLength = 24;
  run_ranks(RankBackend::kThreads, 4, [](World& world) {
    const DeviceMesh mesh = mesh_of(world, "cp");
    for (const PositionCut& positions : {context_parallel_cut(mesh), PositionCut(mesh)}) {
      for (std::int64_t window = 0; window <= kLength; ++window) {
        at::Tensor times = at::zeros({kLength, kLength}, at::kInt);  // that a pair is seen
        for (std::int64_t rank = 0; rank < 4; ++rank) {
          for (std::int64_t other = 0; other < 4; ++other) {
            const auto queries = positions_of(positions, kLength, rank), keys = positions_of(positions, kLength, other);
            const kernels::SdpaOptions options{.causal = true, .window_left = window};
            for (const RingBlock& block : ring_blocks(positions, kLength, rank, other, options)) {
              EXPECT_EQ(block.distance, queries.at(block.queries.begin) - keys.at(block.keys.begin));
              bool has_window = false;
              for (std::int64_t i = block.queries.begin; i < block.queries.end; ++i) {
                bool sees = false;
                for (std::int64_t j = block.keys.begin; j < block.keys.end; ++j) {
                  const std::int64_t query = queries.at(i), key = keys.at(j);
                  if (block.is_causal && key > query) continue;
                  if (key < query - window) {
                    has_window = true;
                    continue;
                  }
                  sees = true;
                  times[query][key].add_(1);
                }
                EXPECT_TRUE(sees) << "window " << window << ", ranks " << rank << " and " << other;
              }
              EXPECT_TRUE(!has_window || block.queries.numel() <= block.keys.numel())
                  << "window " << window << ", ranks " << rank << " and " << other;
            }
          }
        }
        const at::Tensor expected = at::ones({kLength, kLength}, at::kInt).tril().triu(-window);
        EXPECT_TRUE(at::equal(times, expected)) << "window " << window;
      }
    }
  });
}

// The second rank's two ranges of queries are one, which sees the first rank's first keys.
TEST(RingBlocks, Of_a_window_that_only_the_last_queries_feel_are_cut_where_it_begins) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const PositionCut positions = context_parallel_cut(mesh_of(world, "cp"));
    EXPECT_THAT(ring_blocks(positions, 16, 1, 0, {.causal = true, .window_left = 9}),
                ElementsAre(RingBlock{{0, 5}, {0, 4}, false, 4}, RingBlock{{5, 8}, {0, 4}, false, 9}));
    constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();
    EXPECT_THAT(ring_blocks(positions, 16, 1, 0, {.causal = true, .window_left = kEndless}),
                ElementsAre(RingBlock{{0, 8}, {0, 4}, false, 4}));
  });
}

TEST(RingBlocks, Skip_ranks_that_a_window_does_not_reach) {
  run_ranks(RankBackend::kThreads, 4, [](World& world) {
    const PositionCut positions = context_parallel_cut(mesh_of(world, "cp"));
    const kernels::SdpaOptions options{.causal = true, .window_left = 1};
    EXPECT_THAT(ring_blocks(positions, 16, 3, 0, options), IsEmpty());
    EXPECT_THAT(ring_blocks(positions, 16, 2, 1, options), ElementsAre(RingBlock{{0, 1}, {1, 2}, false, 1}));
  });
}

TEST(RingRefusal, Names_masks_and_windows_that_look_ahead_or_are_in_packed_sequences) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const PositionCut positions = context_parallel_cut(mesh_of(world, "cp"));
    const at::Tensor x = at::zeros({1, 4, 2, 8});
    kernels::SdpaInputs inputs{.query = x, .key = x, .value = x};
    EXPECT_EQ(ring_refusal(inputs, {.causal = true, .window_left = 3}, positions), "");
    EXPECT_EQ(ring_refusal(inputs, {.window_left = 3}, positions), "takes windows of causal attention only");
    EXPECT_EQ(ring_refusal(inputs, {.causal = true, .window_right = 0}, positions),
              "takes windows of causal attention only");
    inputs.packed = PackedSequences{.cu_seqlens = at::tensor({0, 8}, at::kInt), .max_length = 8};
    EXPECT_EQ(ring_refusal(inputs, {}, positions), "");
    EXPECT_EQ(ring_refusal(inputs, {.causal = true, .window_left = 3}, positions),
              "takes no windows of packed sequences");
    inputs.packed = std::nullopt;
    inputs.mask = at::ones({4, 8}, at::kBool);
    EXPECT_EQ(ring_refusal(inputs, {}, positions), "takes no attention mask");
  });
}

}  // namespace
}  // namespace d9d::test::ring_attention_test
