// Scaled dot-product attention with grouped key and value heads: the inputs and options that every core takes, and the
// cores. scaled_dot_product_attention.h chooses between them.
//
// Example
//   at::Tensor out = d9d::kernels::torch_attention({.query = q, .key = k, .value = v}, {.causal = true});
//   at::Tensor out = d9d::kernels::eager_attention({.query = q, .key = k, .value = v, .sinks = sinks},
//                                                  {.causal = true, .window_left = 127}).out;
//
// B batch, S queries, Skv keys, Hq and Hkv heads of queries and of keys and values, D features a head.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/attention/packed_sequences.h"
#include "d9d/kernels/attention/sdpa_config.h"

namespace d9d::kernels {

// Query head h reads key and value head h / (Hq / Hkv).
struct SdpaInputs {
  const at::Tensor& query;  // [B, S, Hq, D]
  const at::Tensor& key;    // [B, Skv, Hkv, D], Hq a multiple of Hkv
  const at::Tensor& value;  // [B, Skv, Hkv, D]
  // Broadcastable to [B, Hq, S, Skv]. Boolean: true keeps. Floating: added to the scaled logits. No gradient goes to
  // it.
  std::optional<at::Tensor> mask = std::nullopt;
  // [Hq]: one more logit a head that takes part in the softmax and has no value (Xiao et al. 2023, arXiv:2309.17453, in
  // the learned form of GPT-OSS).
  std::optional<at::Tensor> sinks = std::nullopt;
  std::optional<PackedSequences> packed = std::nullopt;  // B = 1, S = Skv, no mask
};

// Query i sees key j when all that is set here holds and the mask keeps it. Positions count from 0 in keys, and from
// first_query in queries.
struct SdpaOptions {
  bool causal = false;                                      // j <= i
  std::optional<std::int64_t> window_left = std::nullopt;   // j >= i - window_left: 64 keeps 64 earlier keys and itself
  std::optional<std::int64_t> window_right = std::nullopt;  // j <= i + window_right
  std::optional<double> scale = std::nullopt;               // of the logits; 1 / sqrt(D) if unset
  std::optional<double> softcap = std::nullopt;  // scaled logits x become softcap * tanh(x / softcap), as in Gemma 2
  std::int64_t first_query = 0;  // position of query 0 among the keys: what a part of a sequence has before it
};

struct SdpaOutput {
  at::Tensor out;  // [B, S, Hq, D]
  // [B, Hq, S], float or double: log of the sum of exponentials of all logits that a query sees, its sink too; -inf
  // where it sees nothing. Differentiable.
  at::Tensor logsumexp;
};

// The fused kernels of a GPU that know bands of keys, packed sequences and the logsumexp.
enum class FusedSdpaKernel : std::uint8_t {
  kCudnn,  // cuDNN's graphs, on Hopper
  kFlash,  // LibTorch's FlashAttention-2; repeats its gradients bit by bit under deterministic algorithms
};

// All return [B, S, Hq, D], contiguous, in the dtype of query; are differentiable in query, key, value and sinks; give
// zeros and zero gradients where a query sees no key; throw ConfigError for shapes that do not fit; do not wait for the
// device.

// Plain products and a softmax in at least fp32; keeps [B, Hq, S, Skv] for the backward pass. Takes everything.
[[nodiscard]] SdpaOutput eager_attention(const SdpaInputs& inputs, const SdpaOptions& options);

// `kernels`: the first that takes these inputs; empty leaves the choice to LibTorch. Keeps O(S) a head unless the
// kernel is kMath. Throws ConfigError for sinks, windows, softcap, packed sequences on a GPU and, with each kernel's
// reason, if no kernel takes the inputs.
[[nodiscard]] at::Tensor torch_attention(const SdpaInputs& inputs, const SdpaOptions& options,
                                         const std::vector<TorchSdpaKernel>& kernels = {});

// bf16 and half on a GPU. Keeps O(S) a head. Takes everything but masks; softcap with kCudnn alone. What kCudnn does
// not take of the rest runs on kFlash. Throws ConfigError for what neither takes. With kCudnn, unpacked, where a row
// of `value` lies behind as many columns as query and key have together, as in a projection [q | k | v], so does its
// gradient, in a buffer of its own whose other columns are uninitialised: room for what norm_rotary computes.
[[nodiscard]] SdpaOutput fused_attention(const SdpaInputs& inputs, const SdpaOptions& options, FusedSdpaKernel kernel);

namespace detail {
// Throws ConfigError, naming `core`, unless the shapes fit.
void check_sdpa_shapes(const char* core, const SdpaInputs& inputs);
[[nodiscard]] double logit_scale(const SdpaInputs& inputs, const SdpaOptions& options);
// [S, Skv] bool, true where causality, the window or the end of a packed sequence hides the key; undefined if nothing
// does.
[[nodiscard]] at::Tensor hidden_by_position(const SdpaInputs& inputs, const SdpaOptions& options);
}  // namespace detail

}  // namespace d9d::kernels
