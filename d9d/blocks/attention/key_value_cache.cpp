#include "d9d/blocks/attention/key_value_cache.h"

#include <ATen/ATen.h>

namespace d9d {

at::Tensor KeyValueCache::attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                 const kernels::SdpaPreferences& preferences) const {
  D9D_CHECK(
      options.causal && !inputs.mask && inputs.packed, UncachedAttentionError,
      "[blocks::KeyValueCache] expected causal attention of packed sequences without a mask, got ",
      !options.causal ? "attention to later positions" : (inputs.mask ? "a mask" : "sequences that are not packed"),
      ". Use generate(), which then needs no cache, or give the attention SequenceShared::packed.");
  const auto rows_of = [&](const at::Tensor& heads) {
    return at::zeros({1, num_rows_, heads.size(2), heads.size(3)}, heads.options());
  };
  if (number_ != step_->number) next_call_ = 0;
  number_ = step_->number;
  if (next_call_ == calls_.size()) calls_.push_back({.key = rows_of(inputs.key), .value = rows_of(inputs.value)});
  const Rows& rows = calls_[next_call_++];
  rows.key.index_copy_(1, step_->rows, inputs.key);
  rows.value.index_copy_(1, step_->rows, inputs.value);
  return kernels::scaled_dot_product_attention({.query = inputs.query,
                                                .key = rows.key,
                                                .value = rows.value,
                                                .sinks = inputs.sinks,
                                                .packed = inputs.packed,
                                                .packed_keys = step_->keys},
                                               options, preferences);
}

}  // namespace d9d
