// Scaled dot-product attention with grouped key and value heads: the inputs and options that every core takes, and the
// cores. scaled_dot_product_attention.h chooses between them.
//
// Example
//   at::Tensor out = d9d::kernels::torch_attention({.query = q, .key = k, .value = v}, {.causal = true});
//   at::Tensor out = d9d::kernels::eager_attention({.query = q, .key = k, .value = v, .sinks = sinks},
//                                                  {.causal = true, .window_left = 127}).out;
//
// Legend   B batch, S queries, Skv keys, Hq query heads, Hkv key and value heads, D features per head.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/packed_sequences/packed_sequences.h"
#include "d9d/kernels/attention/sdpa_config.h"

namespace d9d::kernels {

// Query head h reads key and value head h / (Hq / Hkv).
struct SdpaInputs {
  const at::Tensor& query;  // [B, S, Hq, D]
  const at::Tensor& key;    // [B, Skv, Hkv, D], Hq a multiple of Hkv
  const at::Tensor& value;  // [B, Skv, Hkv, D]
  // Broadcastable to [B, Hq, S, Skv]. A boolean mask keeps where it is true; a floating one is added to the scaled
  // logits. It gets no gradient.
  std::optional<at::Tensor> mask = std::nullopt;
  // [Hq]: an additional logit per head that takes part in the softmax and has no value (Xiao et al. 2023,
  // arXiv:2309.17453, in the learned form of GPT-OSS).
  std::optional<at::Tensor> sinks = std::nullopt;
  std::optional<PackedSequences> packed = std::nullopt;  // B = 1, S = Skv unless there are packed_keys, no mask
  std::optional<PackedKeys> packed_keys = std::nullopt;  // only with packed, and as many sequences; see PackedKeys
};

// Query i sees key j if all conditions set here hold and the mask keeps the pair. Keys have positions from 0, queries
// from first_query, or in a sequence with packed_keys from its keys less its queries.
struct SdpaOptions {
  bool causal = false;                                      // j <= i
  std::optional<std::int64_t> window_left = std::nullopt;   // j >= i - window_left: 64 keeps 64 earlier keys and itself
  std::optional<std::int64_t> window_right = std::nullopt;  // j <= i + window_right
  std::optional<double> scale = std::nullopt;               // of the logits; 1 / sqrt(D) if unset
  std::optional<double> softcap = std::nullopt;  // scaled logits x become softcap * tanh(x / softcap), as in Gemma 2
  std::int64_t first_query = 0;  // position of query 0 among the keys; not 0 if the queries are a part of the sequence
};

struct SdpaOutput {
  at::Tensor out;  // [B, S, Hq, D]
  // [B, Hq, S], float or double: log of the sum of exponentials of all logits that a query sees, including the sink;
  // -inf for a query that sees nothing. Differentiable.
  at::Tensor logsumexp;
};

// The fused GPU kernels. They support windows, packed sequences and the logsumexp.
enum class FusedSdpaKernel : std::uint8_t {
  kCudnn,  // cuDNN's graphs, on Hopper
  kFlash,  // LibTorch's FlashAttention-2; its gradients are bitwise reproducible under deterministic algorithms
};

// All cores return [B, S, Hq, D], contiguous, in the dtype of query, and are differentiable in query, key, value and
// sinks. A query that sees no key gets zeros and zero gradients. They throw ConfigError for shapes that do not fit and
// do not synchronise with the device.

// Matrix products and a softmax in at least fp32. Keeps [B, Hq, S, Skv] for the backward pass. Takes all inputs and
// options.
[[nodiscard]] SdpaOutput eager_attention(const SdpaInputs& inputs, const SdpaOptions& options);

// Runs the first of `kernels` that takes these inputs; LibTorch chooses if the list is empty. Keeps O(S) per head for
// the backward pass unless the kernel is kMath. Throws ConfigError for sinks, windows, a softcap, packed sequences on a
// GPU and, with each kernel's reason, if no kernel takes the inputs.
[[nodiscard]] at::Tensor torch_attention(const SdpaInputs& inputs, const SdpaOptions& options,
                                         const std::vector<TorchSdpaKernel>& kernels = {});

// For bf16 and half on a GPU. Keeps O(S) per head for the backward pass. Takes everything but masks; a softcap needs
// kCudnn, and packed_keys with lengths have neither gradients nor a softcap. Other calls that kCudnn does not take run
// on kFlash. Calls in which some query sees no key, and those that neither takes, run on eager_attention: windows of
// more queries than keys. Throws ConfigError for what none of them takes.
// With kCudnn and dense sequences, if each row of `value` is preceded by as many columns as query and key have
// together, as in a projection [q | k | v], so are the rows of its gradient, in a buffer of its own. The preceding
// columns are uninitialised: norm_rotary writes the gradients of query and key there.
[[nodiscard]] SdpaOutput fused_attention(const SdpaInputs& inputs, const SdpaOptions& options, FusedSdpaKernel kernel);

namespace detail {
// Throws ConfigError, naming `core`, unless the shapes fit.
void check_sdpa_shapes(const char* core, const SdpaInputs& inputs);
[[nodiscard]] at::Tensor lengths_of(const PackedKeys& keys);  // [N] int32
[[nodiscard]] at::Tensor in_one_row(const at::Tensor& x);     // [B, S, ..] as [1, B * S, ..]
[[nodiscard]] double logit_scale(const SdpaInputs& inputs, const SdpaOptions& options);
// [S, Skv] bool, true where causality, the window or another packed sequence hides the key from the query; undefined if
// none of these is set.
[[nodiscard]] at::Tensor hidden_by_position(const SdpaInputs& inputs, const SdpaOptions& options);
// Attention of packed sequences on a CPU, where cu_seqlens can be read without synchronising: calls `core` on every
// sequence of inputs.packed, which must be set, and concatenates the results. The logsumexp is undefined if `core`
// returns none. Throws ConfigError for cu_seqlens and lengths that do not fit the inputs.
[[nodiscard]] SdpaOutput each_sequence(
    const std::function<SdpaOutput(const SdpaInputs& sequence, const SdpaOptions& options)>& core,
    const SdpaInputs& inputs, const SdpaOptions& options);
}  // namespace detail

}  // namespace d9d::kernels
