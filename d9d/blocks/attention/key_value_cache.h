// The keys and values of all positions that a layer has attended to so far, for decoding: a forward gets the new
// positions of some sequences, in one packed row, and attends to all positions of each.
//
// Example
//   const auto step = std::make_shared<CacheStep>();
//   const auto cache = std::make_shared<KeyValueCache>(step, /*num_rows=*/1024);
//   attention->kernel->set_attention_context(cache);
//   step->number = 1;
//   step->rows = at::tensor({0, 1, 2, 512, 513});            // two prompts, of 3 and of 2 tokens
//   step->keys = {.cu_seqlens = at::tensor({0, 512, 1024}, at::kInt), .lengths = at::tensor({3, 2}, at::kInt), ...};
//   ...                                                      // a forward with packed queries of the same lengths
//
// Legend   T new positions of all sequences, R rows, H heads, D features a head
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/blocks/attention/attention_context.h"

namespace d9d {

// What the caches of all layers do in a forward.
struct CacheStep {
  std::int64_t number = 0;  // of this forward; another one than that of the former
  at::Tensor rows;          // [T] int64: the rows that the keys and values of this forward's positions get
  PackedKeys keys;          // of this forward's sequences, with the new positions
};

// Attention that no cache serves: generate() then computes the whole sequence for each token.
struct UncachedAttentionError : ConfigError {
  using ConfigError::ConfigError;
};

class KeyValueCache final : public AttentionContext {
 public:
  // step: what the next forward does; its owner changes it between forwards.
  KeyValueCache(std::shared_ptr<const CacheStep> step, std::int64_t num_rows)
      : step_(std::move(step)), num_rows_(num_rows) {}

  // Local. inputs: [1, T, H, D], packed. A layer that a forward calls several times has R rows of keys and values for
  // each of these calls, which the first forward allocates. Throws UncachedAttentionError for attention that is not
  // causal, and for a mask, because the positions after the new ones are not known, and for sequences that are not
  // packed.
  [[nodiscard]] at::Tensor attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                  const kernels::SdpaPreferences& preferences) const override;

 private:
  struct Rows {
    at::Tensor key, value;  // [1, R, H, D]
  };

  const std::shared_ptr<const CacheStep> step_;
  const std::int64_t num_rows_;
  mutable std::vector<Rows> calls_;    // of a forward
  mutable std::int64_t number_ = 0;    // of the latest forward
  mutable std::size_t next_call_ = 0;  // in it
};

}  // namespace d9d
