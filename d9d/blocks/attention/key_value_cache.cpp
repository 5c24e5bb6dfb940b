#include "d9d/blocks/attention/key_value_cache.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {

at::Tensor KeyValueCache::attend(const AttentionCore& core, const kernels::SdpaInputs& inputs,
                                 const kernels::SdpaOptions& options) const {
  D9D_CHECK(
      options.causal && !inputs.mask && inputs.packed, ConfigError,
      "[blocks::KeyValueCache] expected causal attention of packed sequences without a mask, got ",
      !options.causal ? "attention to later positions" : (inputs.mask ? "a mask" : "sequences that are not packed"),
      ". Generate without a cache (generate.h).");
  const auto rows_of = [&](const at::Tensor& heads) {
    return at::zeros({1, num_rows_, heads.size(2), heads.size(3)}, heads.options());
  };
  if (!key_.defined()) {
    key_ = rows_of(inputs.key);
    value_ = rows_of(inputs.value);
  }
  key_.index_copy_(1, step_->rows, inputs.key);
  value_.index_copy_(1, step_->rows, inputs.value);
  return core({.query = inputs.query,
               .key = key_,
               .value = value_,
               .sinks = inputs.sinks,
               .packed = inputs.packed,
               .packed_keys = step_->keys},
              options);
}

}  // namespace d9d
