#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/kernels/attention/fused_kernels.h"

namespace d9d::kernels::detail {
namespace {

// The kernels take [B, S, H, D], and packed sequences as [positions, H, D].
at::Tensor rows(const at::Tensor& heads, const FusedTensors& tensors) {
  return tensors.cu_seqlens.defined() ? heads.squeeze(0) : heads;
}

// cu_seqlens and the greatest length of keys, of a packed call.
const at::Tensor& key_cu_seqlens(const FusedTensors& tensors) {
  return tensors.key_cu_seqlens.defined() ? tensors.key_cu_seqlens : tensors.cu_seqlens;
}

// With 1 the kernel may expect a query of every sequence, of which some have none here.
std::int64_t max_queries(const FusedTensors& tensors, const FusedCall& call) {
  if (call.max_length == 0) return tensors.query.size(1);
  return tensors.key_lengths.defined() ? call.max_length : std::max<std::int64_t>(call.max_length, 2);
}

std::int64_t max_keys(const FusedTensors& tensors, const FusedCall& call) {
  if (call.max_key_length > 0) return call.max_key_length;
  return call.max_length > 0 ? call.max_length : tensors.key.size(1);
}

std::optional<at::Tensor> if_defined(const at::Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; }

bool is_plain_causal(const FusedCall& call) { return !call.left && call.right == 0; }

}  // namespace

const char* flash_refusal(const FusedTensors& tensors, const FusedCall& call) {
  if (call.softcap) return "takes no softcap";
  // Where one side has no bound, or a bound of all keys, the kernel takes the number of keys for it. So the first of
  // more queries than keys would not see the last keys.
  const bool has_more_queries = !tensors.cu_seqlens.defined() && tensors.query.size(1) > tensors.key.size(1);
  return has_more_queries && (call.left || call.right) ? "takes no window with more queries than keys" : nullptr;
}

FusedForward flash_forward(const FusedTensors& tensors, const FusedCall& call) {
  const auto [out, logsumexp, random_state, unused, debug] = at::_flash_attention_forward(
      rows(tensors.query, tensors), rows(tensors.key, tensors), rows(tensors.value, tensors),
      if_defined(tensors.cu_seqlens), if_defined(key_cu_seqlens(tensors)), max_queries(tensors, call),
      max_keys(tensors, call), /*dropout_p=*/0.0, is_plain_causal(call), /*return_debug_mask=*/false, call.scale,
      call.left, call.right, if_defined(tensors.key_lengths));
  if (!tensors.cu_seqlens.defined()) return {.out = out, .logsumexp = logsumexp};
  // The kernel's logsumexp is +inf for a query that sees no key.
  if (may_see_nothing(tensors, call)) logsumexp.masked_fill_(logsumexp == kInfiniteLogsumexp, -kInfiniteLogsumexp);
  return {.out = out.unsqueeze(0), .logsumexp = logsumexp.unsqueeze(0)};
}

FusedGradients flash_backward(const at::Tensor& grad_out, const FusedTensors& tensors, const FusedForward& forward,
                              const FusedCall& call) {
  const auto no_random_state = at::empty({2}, tensors.query.options().dtype(at::kUInt64));
  const auto nothing = at::empty({0}, tensors.query.options());
  const auto logsumexp = forward.logsumexp.contiguous();
  const auto [query, key, value] = at::_flash_attention_backward(
      rows(grad_out, tensors), rows(tensors.query, tensors), rows(tensors.key, tensors), rows(tensors.value, tensors),
      rows(forward.out, tensors), tensors.cu_seqlens.defined() ? logsumexp.squeeze(0) : logsumexp, tensors.cu_seqlens,
      key_cu_seqlens(tensors), max_queries(tensors, call), max_keys(tensors, call), /*dropout_p=*/0.0,
      is_plain_causal(call), no_random_state, nothing, call.scale, call.left, call.right);
  if (!tensors.cu_seqlens.defined()) return {.query = query, .key = key, .value = value};
  return {.query = query.unsqueeze(0), .key = key.unsqueeze(0), .value = value.unsqueeze(0)};
}

// With p the attention weights, o = p v and l the logsumexp, the gradient of a logit is p (do v - do o + dl). The
// kernel computes do v - do o. An additional feature with v = 1, do = dl and o = 0 adds dl to its do v and nothing to
// its do o.
FusedGradients flash_backward_with_logsumexp(const at::Tensor& grad_out, const at::Tensor& grad_logsumexp,
                                             const FusedTensors& tensors, const FusedForward& forward,
                                             const FusedCall& call) {
  const std::int64_t num_features = tensors.query.size(3);
  const auto padded = [&](const at::Tensor& x) { return at::constant_pad_nd(x, {0, kMoreFeatures}); };
  FusedTensors wide = tensors;
  wide.query = padded(tensors.query);
  wide.key = padded(tensors.key);
  wide.value = padded(tensors.value);
  wide.value.select(-1, num_features).fill_(1);
  const auto wide_grad = padded(grad_out);
  wide_grad.select(-1, num_features).copy_(grad_logsumexp.transpose(1, 2));
  const auto grads =
      flash_backward(wide_grad, wide, {.out = padded(forward.out), .logsumexp = forward.logsumexp}, call);
  const auto narrowed = [&](const at::Tensor& x) { return x.narrow(-1, 0, num_features).contiguous(); };
  return {.query = narrowed(grads.query), .key = narrowed(grads.key), .value = narrowed(grads.value)};
}

}  // namespace d9d::kernels::detail
