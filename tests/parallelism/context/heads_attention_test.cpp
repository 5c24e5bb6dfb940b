// Attention with heads over ranks, and by the chosen method, compared with one rank: outputs and all gradients.
#include "d9d/parallelism/context/heads_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/attention/sdpa.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

#include "tests/parallelism/one_rank.h"
#include "tests/support/io_faults.h"

namespace d9d::test::heads_attention_test {
namespace {

using ::testing::HasSubstr;
using Chunks = std::vector<std::vector<std::int64_t>>;

constexpr std::int64_t kSequence = 24;  // a multiple of all numbers of chunks
constexpr std::int64_t kRows = 2;

struct Case {
  const char* name;
  SdpaParameters parameters;
  bool is_causal = true;
  bool is_packed = false;
  friend std::ostream& operator<<(std::ostream& out, const Case& each) { return out << each.name; }
};

struct Heads {
  std::int64_t of_queries, of_keys;
};

// Documents of both rows: longer than a chunk, of one position, empty, and with bounds at those of chunks and rows.
PackedSequences documents() {
  return {.cu_seqlens = at::tensor({0, 1, 6, 6, 20, 24, 24, 37, 48}, at::kInt), .max_length = 14};
}

class HeadsAttention : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Cores, HeadsAttention,
    ::testing::Values(Case{"torch", {.backend = TorchSdpaConfig{}}}, Case{"eager", {.backend = EagerSdpaConfig{}}},
                      Case{"not_causal", {.backend = TorchSdpaConfig{}}, false}, Case{"window", {.window_left = 4}},
                      Case{"window_both_ways", {.window_left = 3, .window_right = 2}, false},
                      Case{"softcap", {.softcap = 1.5}}, Case{"packed", {.backend = TorchSdpaConfig{}}, true, true},
                      Case{"packed_not_causal", {}, false, true}, Case{"packed_window", {.window_left = 3}, true, true},
                      Case{"packed_window_both_ways", {.window_left = 3, .window_right = 2}, false, true}),
    [](const auto& each) { return each.param.name; });

void expect_equals_one_rank(const Case& each, const Heads& heads, bool has_sinks, const Chunks& chunks,
                            ContextAttention method) {
  run_ranks(RankBackend::kThreads, std::ssize(chunks), [&](World& world) {
    const DeviceMesh ranks = mesh_of(world, "cp");
    const PositionCut positions(ranks, chunks);
    SdpaParameters parameters = each.parameters;
    if (has_sinks) {
      parameters.num_sinks = heads.of_queries;
      parameters.backend = EagerSdpaConfig{};
    }
    const auto one = initialized(make_module<Sdpa>(parameters)), cut = initialized(make_module<Sdpa>(parameters));
    if (has_sinks) {
      for (const auto& sdpa : {one, cut}) sdpa->sinks->local().detach().copy_(values({heads.of_queries}, 6));
    }
    parallelize_context_parallel(*cut, positions, {.attention = method});
    const at::Tensor q = values({kRows, kSequence, heads.of_queries, 8}, 1).requires_grad_();
    const at::Tensor k = values({kRows, kSequence, heads.of_keys, 8}, 2).requires_grad_();
    const at::Tensor v = values({kRows, kSequence, heads.of_keys, 8}, 3).requires_grad_();
    const auto here = [&](const at::Tensor& x) {
      return context_parallel_shard(x.detach(), 1, positions).clone().requires_grad_();
    };
    const at::Tensor own_q = here(q), own_k = here(k), own_v = here(v);
    const kernels::SdpaOptions options{.causal = each.is_causal};
    const std::optional<PackedSequences> packed = each.is_packed ? std::optional(documents()) : std::nullopt;
    const auto rows = [&](const at::Tensor& x) { return each.is_packed ? x.flatten(0, 1).unsqueeze(0) : x; };
    const at::Tensor whole_q = rows(q), whole_k = rows(k), whole_v = rows(v);
    const at::Tensor expected =
        one->forward({.query = whole_q, .key = whole_k, .value = whole_v, .packed = packed}, options).view(q.sizes());
    const at::Tensor output = cut->forward({.query = own_q, .key = own_k, .value = own_v, .packed = packed}, options);
    const at::Tensor grad = values(expected.sizes(), 5);
    (expected * grad).sum().backward();
    (output * context_parallel_shard(grad, 1, positions)).sum().backward();
    const auto expect = [&](const std::string& name, const at::Tensor& actual, const at::Tensor& whole) {
      expect_close(cat(name, " of ", heads.of_queries, " and ", heads.of_keys, " heads on ", world.size(),
                       " ranks, sinks ", has_sinks, ", ", enum_name(method)),
                   actual, context_parallel_shard(whole, 1, positions), tolerance("fp64"));
    };
    expect("output", output, expected);
    expect("query", own_q.grad(), q.grad());
    expect("key", own_k.grad(), k.grad());
    expect("value", own_v.grad(), v.grad());
    if (!has_sinks) return;
    const at::Tensor sum = cut->sinks->local().grad().clone();  // as data-parallel ranks sum it
    ranks.communicator()->all_reduce(sum, ReduceOp::kSum).wait();
    expect_close("sinks", sum, one->sinks->local().grad(), tolerance("fp64"));
  });
}

// Ranks that divide both kinds of heads, and ranks that share heads of keys.
TEST_P(HeadsAttention, Equals_one_rank) {
  const std::vector<std::pair<Chunks, std::vector<Heads>>> layouts = {
      {{{0}, {1}}, {{4, 2}, {2, 1}}},
      {{{0, 3}, {1, 2}}, {{4, 2}, {4, 4}, {2, 1}}},
      {{{0}, {1}, {2}}, {{6, 3}}},
      {{{0, 7}, {1, 6}, {2, 5}, {3, 4}}, {{8, 2}, {4, 1}}}};
  for (const auto& [chunks, all_heads] : layouts) {
    for (const Heads& heads : all_heads) {
      for (const bool has_sinks : {false, true}) {
        for (const ContextAttention method :
             {ContextAttention::kHeads, ContextAttention::kAuto, ContextAttention::kGathered}) {
          const bool looks_ahead = GetParam().is_packed && !GetParam().is_causal && GetParam().parameters.window_left;
          if (method == ContextAttention::kGathered && looks_ahead) continue;  // refused
          expect_equals_one_rank(GetParam(), heads, has_sinks, chunks, method);
        }
      }
    }
  }
}

TEST(HeadsAttentionRanks, Divide_heads_of_queries_and_divide_or_share_those_of_keys) {
  EXPECT_TRUE(ranks_divide_heads(2, 4, 2));
  EXPECT_TRUE(ranks_divide_heads(4, 8, 2));
  EXPECT_TRUE(ranks_divide_heads(3, 6, 1));
  EXPECT_FALSE(ranks_divide_heads(3, 8, 4));
  EXPECT_FALSE(ranks_divide_heads(4, 12, 6));  // three heads of queries read two of keys, or one
  EXPECT_FALSE(ranks_divide_heads(8, 4, 4));
}

TEST(HeadsAttentionRanks, Take_no_mask_and_no_heads_that_they_do_not_divide) {
  const auto refusal_of = [](std::int64_t num_heads, bool has_mask) {
    return message_of<ConfigError>([&] {
      run_ranks(RankBackend::kThreads, 2, [&](World& world) {
        const HeadsAttentionContext context(PositionCut(mesh_of(world, "cp")));
        const at::Tensor x = at::zeros({1, 4, num_heads, 8});
        kernels::SdpaInputs inputs{.query = x, .key = x, .value = x};
        if (has_mask) inputs.mask = at::ones({4, 8}, at::kBool);
        (void)context.attend(inputs, {}, {});
      });
    });
  };
  EXPECT_THAT(refusal_of(3, false), HasSubstr("got 2 ranks for 3 heads of queries and 3 of keys"));
  EXPECT_THAT(refusal_of(2, true), HasSubstr("expected no attention mask with heads over ranks"));
}

// What is configured for all layers may not suit each.
TEST(ContextParallelAttentionMethod, That_is_configured_and_takes_no_call_is_refused_with_what_works) {
  EXPECT_THAT(message_of<ConfigError>([] {
                run_ranks(RankBackend::kThreads, 2, [](World& world) {
                  const auto sdpa = make_module<Sdpa>(SdpaParameters{.needs_attention_mask = true});
                  parallelize_context_parallel(*sdpa, PositionCut(mesh_of(world, "cp")),
                                               {.attention = ContextAttention::kHeads});
                  const at::Tensor x = at::zeros({1, 4, 2, 8});
                  (void)sdpa->forward({.query = x, .key = x, .value = x, .mask = at::ones({4, 8}, at::kBool)}, {});
                });
              }),
              HasSubstr("model_provider.context_parallel.attention to be auto or gathered here, got heads, which takes "
                        "no attention mask"));
}

}  // namespace
}  // namespace d9d::test::heads_attention_test
