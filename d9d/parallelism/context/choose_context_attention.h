// How the attention of a call reaches the positions of other context-parallel ranks: the method that costs least time
// among those that take the call. A function of sizes alone, so that all ranks choose the same without communication.
//
// Example
//   const auto choice = choose_context_attention({.num_ranks = 4, .num_positions = 8192, .num_heads = 32,
//                                                 .num_kv_heads = 8, .num_features = 128, .window = 1024});
//   choice.method   // ContextAttention::kRing
//   choice.why      // "it waits for other ranks for the least time, 88 us"
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "d9d/kernels/attention/sdpa.h"
#include "d9d/parallelism/context/context_parallel_config.h"

namespace d9d {

struct ContextAttentionCall {
  std::int64_t num_ranks = 1;
  std::int64_t batch = 1;
  std::int64_t num_positions = 0;  // of a whole sequence
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t num_features = 0;  // a head
  std::int64_t element_bytes = 2;
  bool is_causal = true;
  bool has_mask = false;
  std::optional<std::int64_t> window = {};          // the keys that it shows a query
  std::optional<std::int64_t> longest_packed = {};  // of packed sequences, the most positions that one may have
  std::string no_ring = {};                         // why the ring does not take the call; empty if it does
};

// The call with query, key and value [B, S / W, H, D] of one of num_ranks ranks.
[[nodiscard]] ContextAttentionCall context_attention_call(const kernels::SdpaInputs& inputs,
                                                          const kernels::SdpaOptions& options, std::int64_t num_ranks);

struct ContextAttentionChoice {
  ContextAttention method;  // not kAuto
  std::string why;          // one phrase
};

//   method      moves to each rank, in elements             waits for it          takes
//   kGathered   2 Hkv D S B (W - 1) / W                     yes                   all but packed windows that are
//                                                                                 not causal; keeps 2 Hkv D S B
//   kHeads      (2 Hq + 2 max(Hkv, W)) D S B (W - 1) / W^2  yes                   all but masks, if W divides heads
//   kRing       as kGathered                                beyond its products   see ring_refusal()
//
// With `configured` that method. Throws ConfigError, naming the reason and what works, if it does not take the call.
// A call that no method takes is for kGathered, which throws.
[[nodiscard]] ContextAttentionChoice choose_context_attention(const ContextAttentionCall& call,
                                                              ContextAttention configured = ContextAttention::kAuto);

}  // namespace d9d
