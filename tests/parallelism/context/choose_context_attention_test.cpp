#include "d9d/parallelism/context/choose_context_attention.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/io_faults.h"

namespace d9d::test::choose_context_attention_test {
namespace {

using ::testing::HasSubstr;
using enum ContextAttention;

// Of Qwen3-8B, on 4 ranks that cannot read each other's memory.
ContextAttentionCall of_8b(std::int64_t num_ranks = 4) {
  return {.num_ranks = num_ranks,
          .num_positions = 8192,
          .num_heads = 32,
          .num_kv_heads = 8,
          .num_features = 128,
          .no_ring = "x"};
}
ContextAttentionCall changed(ContextAttentionCall call, const std::function<void(ContextAttentionCall&)>& change) {
  change(call);
  return call;
}

// Packed sequences with a window that is not causal.
ContextAttentionCall looking_ahead(ContextAttentionCall call) {
  call.is_causal = false;
  call.window = call.longest_packed = 1024;
  return call;
}

// On 16 ranks that read each other's memory.
ContextAttentionCall of_ring(std::int64_t num_positions, std::optional<std::int64_t> window,
                             std::optional<std::int64_t> longest_packed) {
  ContextAttentionCall call = of_8b(16);
  call.no_ring = "";
  call.num_positions = num_positions;
  call.window = window;
  call.longest_packed = longest_packed;
  return call;
}

TEST(ChooseContextAttention, Takes_the_method_that_moves_least_and_takes_the_call) {
  struct Row {
    const char* what;
    ContextAttentionCall call;
    ContextAttention method;
  };
  const std::vector<Row> table = {
      {"few heads of keys beside those of queries", of_8b(2), kGathered},
      {"ranks that divide the heads many times", of_8b(8), kHeads},
      {"as many heads of keys as of queries", changed(of_8b(), [](auto& call) { call.num_kv_heads = 32; }), kHeads},
      {"heads of keys that ranks share", changed(of_8b(8), [](auto& call) { call.num_kv_heads = 1; }), kGathered},
      {"ranks that do not divide the heads", changed(of_8b(3), [](auto& call) { call.num_kv_heads = 32; }), kGathered},
      {"a ring", changed(of_8b(), [](auto& call) { call.no_ring = ""; }), kRing},
      {"a ring of few positions",
       changed(of_8b(),
               [](auto& call) {
                 call.no_ring = "";
                 call.num_positions = 256;
               }),
       kGathered},
      {"a mask", changed(of_8b(8), [](auto& call) { call.has_mask = true; }), kGathered},
      {"a window", changed(of_8b(8), [](auto& call) { call.window = 1024; }), kHeads},
      {"a window and few heads of keys", changed(of_8b(2), [](auto& call) { call.window = 1024; }), kGathered},
      {"packed sequences", changed(of_8b(8), [](auto& call) { call.longest_packed = 1024; }), kHeads},
      {"packed sequences and ranks that do not divide the heads",
       changed(of_8b(3), [](auto& call) { call.longest_packed = 1024; }), kGathered},
      {"a ring of long packed sequences", of_ring(65536, {}, 32768), kRing},
      {"a ring of a wide window", of_ring(131072, 32768, {}), kRing},
      {"a ring that packed sequences leave little to compute with", of_ring(1 << 19, {}, 16), kHeads},
      {"a ring that a window leaves little to compute with", of_ring(1 << 19, 16, {}), kHeads},
      {"a window of packed sequences that looks ahead", looking_ahead(of_8b()), kHeads},
      {"what no method takes, and gathered keys refuse", looking_ahead(of_8b(3)), kGathered},
      {"a window and a mask",
       changed(of_8b(8),
               [](auto& call) {
                 call.window = 1024;
                 call.has_mask = true;
               }),
       kGathered},
  };
  for (const Row& row : table) {
    const ContextAttentionChoice choice = choose_context_attention(row.call);
    EXPECT_EQ(enum_name(choice.method), enum_name(row.method)) << row.what << ": " << choice.why;
    EXPECT_FALSE(choice.why.empty());
  }
}

TEST(ChooseContextAttention, Follows_the_configuration) {
  for (const ContextAttention method : {kGathered, kHeads}) {
    EXPECT_EQ(choose_context_attention(of_8b(), method).method, method);
  }
}

TEST(ChooseContextAttention, Refuses_what_is_configured_and_does_not_take_the_call_and_says_what_does) {
  const auto refusal_of = [](ContextAttention method, const ContextAttentionCall& call) {
    return message_of<ConfigError>([&] { (void)choose_context_attention(call, method); });
  };
  EXPECT_THAT(
      refusal_of(kHeads, of_8b(3)),
      HasSubstr("expected model_provider.context_parallel.attention to be auto or gathered here, got heads, which "
                "gives 3 ranks no equal shares of 32 heads of queries and 8 of keys"));
  EXPECT_THAT(refusal_of(kHeads, changed(of_8b(), [](auto& call) { call.has_mask = true; })),
              HasSubstr("takes no attention mask"));
  EXPECT_THAT(refusal_of(kGathered, changed(of_8b(2),
                                            [](auto& call) {
                                              call.window = call.longest_packed = 1024;
                                              call.is_causal = false;
                                            })),
              HasSubstr("to be auto or heads here, got gathered, which takes no packed sequences with a window "
                        "of attention that is not causal"));
  EXPECT_THAT(
      refusal_of(kRing, changed(of_8b(), [](auto& call) { call.no_ring = "takes no windows of packed sequences"; })),
      HasSubstr("to be auto or gathered or heads here, got ring, which takes no windows of packed sequences"));
  EXPECT_THAT(refusal_of(kGathered, looking_ahead(of_8b())),
              HasSubstr("to be auto or heads here, got gathered, which takes no packed sequences with a window"));
  EXPECT_EQ(choose_context_attention(looking_ahead(of_8b(3)), kRing).method, kGathered);
}

TEST(ChooseContextAttention, Reads_a_call) {
  const at::Tensor query = at::zeros({2, 6, 4, 8}), key = at::zeros({2, 6, 2, 8});
  const auto call = context_attention_call({.query = query, .key = key, .value = key}, {.window_left = 3}, 3);
  EXPECT_EQ(call.batch, 2);
  EXPECT_EQ(call.num_positions, 18);
  EXPECT_EQ(call.num_heads, 4);
  EXPECT_EQ(call.num_kv_heads, 2);
  EXPECT_EQ(call.num_features, 8);
  EXPECT_EQ(call.element_bytes, 4);
  EXPECT_EQ(call.window, 3 + 1 + 18);
  EXPECT_FALSE(call.is_causal || call.has_mask || call.longest_packed);
  const PackedSequences packed{.cu_seqlens = at::tensor({0, 30, 36}, at::kInt), .max_length = 30};
  const auto causal = context_attention_call({.query = query, .key = key, .value = key, .packed = packed},
                                             {.causal = true, .window_left = 3}, 3);
  EXPECT_EQ(causal.window, 4);
  EXPECT_EQ(causal.longest_packed, 30);
}

}  // namespace
}  // namespace d9d::test::choose_context_attention_test
