// The keys and values of all positions that a layer has attended to so far, for decoding: a forward gets the new
// positions of some sequences, in one packed row, and attends to all positions of each.
//
// Example
//   const auto step = std::make_shared<CacheStep>();
//   const auto cache = std::make_shared<KeyValueCache>(step, /*num_rows=*/1024);
//   attention->kernel->set_attention_context(cache);
//   step->rows = at::tensor({0, 1, 2, 512, 513});            // two prompts, of 3 and of 2 tokens
//   step->keys = {.cu_seqlens = at::tensor({0, 512, 1024}, at::kInt), .lengths = at::tensor({3, 2}, at::kInt), ...};
//   ...                                                      // a forward with packed queries of the same lengths
//
// Legend   T new positions of all sequences, R rows, H heads, D features a head
#pragma once

#include <cstdint>
#include <memory>

#include "d9d/blocks/attention/attention_context.h"

namespace d9d {

// What the caches of all layers do in a forward.
struct CacheStep {
  at::Tensor rows;  // [T] int64: the rows that the keys and values of this forward's positions get
  PackedKeys keys;  // of this forward's sequences, with the new positions
};

class KeyValueCache final : public AttentionContext {
 public:
  // step: what the next forward does; its owner changes it between forwards.
  KeyValueCache(std::shared_ptr<const CacheStep> step, std::int64_t num_rows)
      : step_(std::move(step)), num_rows_(num_rows) {}

  // Local. inputs: [1, T, H, D], packed. The first call allocates R rows of keys and values. Throws ConfigError for
  // attention that is not causal, and for a mask: the positions after the new ones are not known.
  [[nodiscard]] at::Tensor attend(const AttentionCore& core, const kernels::SdpaInputs& inputs,
                                  const kernels::SdpaOptions& options) const override;

 private:
  const std::shared_ptr<const CacheStep> step_;
  const std::int64_t num_rows_;
  mutable at::Tensor key_;    // [1, R, H, D]
  mutable at::Tensor value_;  // [1, R, H, D]
};

}  // namespace d9d
