#include <limits>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "d9d/base/check.h"
#include "d9d/kernels/attention/sdpa.h"

namespace d9d::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// logits: [B, Hq, S, Skv]; -inf where a key is not seen. Softmax over keys, and over the sink if there is one; zeros
// where nothing is seen.
at::Tensor softmax_with_sinks(const at::Tensor& logits, const std::optional<at::Tensor>& sinks) {
  auto greatest = logits.detach().amax(-1, /*keepdim=*/true);
  at::Tensor sink_logits;
  if (sinks) {
    sink_logits = sinks->to(logits.scalar_type()).view({1, -1, 1, 1});
    greatest = at::maximum(greatest, sink_logits.detach());
  }
  greatest = greatest.masked_fill(greatest == -kInfinity, 0);
  const auto weights = (logits - greatest).exp();
  auto sum = weights.sum(-1, /*keepdim=*/true);
  if (sinks) sum = sum + (sink_logits - greatest).exp();
  return weights / sum.masked_fill(sum == 0, 1);
}

}  // namespace

at::Tensor eager_attention(const SdpaInputs& inputs, const SdpaOptions& options) {
  detail::check_sdpa_shapes("eager_attention", inputs);
  const auto &q = inputs.query, &k = inputs.key, &v = inputs.value;
  const auto batch = q.size(0), num_queries = q.size(1), num_heads = q.size(2), num_features = q.size(3);
  const auto num_keys = k.size(1), num_kv_heads = k.size(2);
  const auto dtype = at::toOpMathType(q.scalar_type());

  // The query heads of one key head are stacked along the queries, so that keys and values are not repeated.
  const auto stacked = q.to(dtype).transpose(1, 2).reshape({batch, num_kv_heads, -1, num_features});
  auto logits = (at::matmul(stacked, k.to(dtype).permute({0, 2, 3, 1})) * detail::logit_scale(inputs, options))
                    .view({batch, num_heads, num_queries, num_keys});
  const auto hidden = detail::hidden_by_position(inputs, options);
  if (hidden.defined()) logits = logits.masked_fill(hidden, -kInfinity);
  if (inputs.mask) {
    logits = inputs.mask->scalar_type() == at::kBool ? logits.masked_fill(inputs.mask->logical_not(), -kInfinity)
                                                     : logits + inputs.mask->detach().to(dtype);
  }
  const auto probs = softmax_with_sinks(logits, inputs.sinks);
  const auto out = at::matmul(probs.view({batch, num_kv_heads, -1, num_keys}), v.to(dtype).transpose(1, 2));
  return out.view({batch, num_heads, num_queries, num_features}).transpose(1, 2).to(q.scalar_type()).contiguous();
}

}  // namespace d9d::kernels
