#include "d9d/parallelism/context/chosen_attention.h"

#include <ATen/core/Tensor.h>

#include "d9d/base/check.h"
#include "d9d/parallelism/context/choose_context_attention.h"

namespace d9d {

at::Tensor ChosenAttentionContext::attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                          const kernels::SdpaPreferences& preferences) const {
  D9D_CHECK(!inputs.packed, ConfigError,
            "[parallelism::context] expected no packed sequences, got some. Pack without context parallelism.");
  const ContextAttentionCall call = context_attention_call(inputs, options, num_ranks_);
  switch (choose_context_attention(call, config_.attention).method) {
    case ContextAttention::kHeads:
      return heads_.attend(inputs, options, preferences);
    case ContextAttention::kAuto:
    case ContextAttention::kRing:
    case ContextAttention::kGathered:
      break;
  }
  return gathered_.attend(inputs, options, preferences);
}

}  // namespace d9d
