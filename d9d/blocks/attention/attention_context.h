// How the queries of this rank get access to the keys and values of the whole sequence. In the local form this rank
// holds them all; context parallelism installs another form, between an attention layer and its kernels.
//
// Legend   B batch, S positions, H heads, D features a head, W ranks (1 in the local form)
#pragma once

#include <memory>

#include "d9d/kernels/attention/scaled_dot_product_attention.h"

namespace d9d {

class AttentionContext {
 public:
  virtual ~AttentionContext() = default;
  // Collective. inputs: query, key, value [B, S / W, H, D] of this rank's positions; mask broadcastable to
  // [B, Hq, S / W, S], for this rank's queries and all keys; packed of all B * S positions, with no sequence in two
  // rows if W > 1. Returns [B, S / W, Hq, D]. preferences: of the kernels that compute on this rank.
  [[nodiscard]] virtual at::Tensor attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                          const kernels::SdpaPreferences& preferences) const = 0;
};
using AttentionContextPtr = std::shared_ptr<const AttentionContext>;  // shared by the layers of a model

// This rank holds all positions.
class LocalAttentionContext final : public AttentionContext {
 public:
  [[nodiscard]] at::Tensor attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                  const kernels::SdpaPreferences& preferences) const override {
    return kernels::scaled_dot_product_attention(inputs, options, preferences);
  }
};

}  // namespace d9d
