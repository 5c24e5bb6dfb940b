#include "d9d/parallelism/context/chosen_attention.h"

#include <ATen/core/Tensor.h>

#include "d9d/base/check.h"
#include "d9d/parallelism/context/choose_context_attention.h"
#include "d9d/parallelism/context/ring_attention.h"

namespace d9d {

at::Tensor ChosenAttentionContext::attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                          const kernels::SdpaPreferences& preferences) const {
  ContextAttentionCall call = context_attention_call(inputs, options, positions_.num_ranks());
  call.no_ring = ring_refusal(inputs, options, positions_);
  ContextAttention method = choose_context_attention(call, config_.attention).method;
  if (method == ContextAttention::kRing) {
    const auto found = exchanges_->find(inputs.key, [&](PeerBlockExchange& exchange) {
      return exchange.fits({inputs.key, inputs.value});
    });
    if (found.exchange) {
      return ring_attention(inputs, options, preferences, positions_, found.exchange,
                            inputs.packed ? packed_->of(*inputs.packed, call.num_positions) : nullptr);
    }
    call.no_ring = cat("needs ranks that read each other's memory: ", found.reason);
    method = choose_context_attention(call, config_.attention).method;
  }
  return method == ContextAttention::kHeads ? heads_.attend(inputs, options, preferences)
                                            : gathered_.attend(inputs, options, preferences);
}

}  // namespace d9d
