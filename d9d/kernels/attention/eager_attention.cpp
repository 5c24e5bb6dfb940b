#include <limits>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "d9d/kernels/attention/sdpa.h"

namespace d9d::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Softmax {
  at::Tensor probs;      // [B, Hq, S, Skv]
  at::Tensor logsumexp;  // [B, Hq, S]
};

// Softmax of logits [B, Hq, S, Skv] over the keys, and over the sink if there is one. A logit is -inf if the query does
// not see the key. Queries that see nothing get zeros.
Softmax softmax_with_sinks(const at::Tensor& logits, const std::optional<at::Tensor>& sinks) {
  if (logits.size(-1) == 0) return softmax_with_sinks(at::constant_pad_nd(logits, {0, 1}, -kInfinity), sinks);
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
  const auto sees_nothing = sum == 0;
  sum = sum.masked_fill(sees_nothing, 1);
  return {.probs = weights / sum,
          .logsumexp = (sum.log() + greatest).masked_fill(sees_nothing, -kInfinity).squeeze(-1)};
}

}  // namespace

SdpaOutput eager_attention(const SdpaInputs& inputs, const SdpaOptions& options) {
  detail::check_sdpa_shapes("eager_attention", inputs);
  if (inputs.packed && inputs.query.is_cpu()) return detail::each_sequence(eager_attention, inputs, options);
  const auto &q = inputs.query, &k = inputs.key, &v = inputs.value;
  const auto batch = q.size(0), num_queries = q.size(1), num_heads = q.size(2), num_features = q.size(3);
  const auto num_keys = k.size(1), num_kv_heads = k.size(2);
  const auto dtype = at::toOpMathType(q.scalar_type());

  // The query heads that share a key head are stacked along the queries, so that keys and values are not repeated.
  const auto num_stacked = num_queries * (num_heads / num_kv_heads);
  const auto stacked = q.to(dtype).transpose(1, 2).reshape({batch, num_kv_heads, num_stacked, num_features});
  auto logits = (at::matmul(stacked, k.to(dtype).permute({0, 2, 3, 1})) * detail::logit_scale(inputs, options))
                    .view({batch, num_heads, num_queries, num_keys});
  if (options.softcap) logits = (logits / *options.softcap).tanh() * *options.softcap;
  const auto hidden = detail::hidden_by_position(inputs, options);
  if (hidden.defined()) logits = logits.masked_fill(hidden, -kInfinity);
  if (inputs.mask) {
    logits = inputs.mask->scalar_type() == at::kBool ? logits.masked_fill(inputs.mask->logical_not(), -kInfinity)
                                                     : logits + inputs.mask->detach().to(dtype);
  }
  const auto [probs, logsumexp] = softmax_with_sinks(logits, inputs.sinks);
  const auto out = at::matmul(probs.narrow(-1, 0, num_keys).view({batch, num_kv_heads, num_stacked, num_keys}),
                              v.to(dtype).transpose(1, 2));
  return {
      .out = out.view({batch, num_heads, num_queries, num_features}).transpose(1, 2).to(q.scalar_type()).contiguous(),
      .logsumexp = logsumexp};
}

}  // namespace d9d::kernels
