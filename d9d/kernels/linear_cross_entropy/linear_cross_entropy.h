// The cross-entropy of a linear head, without ever holding the logits: they are computed in chunks, forward, and again
// in the backward (Wijmans et al., arXiv:2411.09009, without that paper's approximate gradient filter), or once, with
// the gradients.
//
//   z = softcap(hidden * weight^T + bias)     lse = logsumexp(z)     loss = lse - z[target] + z_loss_weight * lse^2
//
// Example
//   const auto output = kernels::linear_cross_entropy(hidden, head->weight(), labels);      // loss [B, S], fp32
//   const kernels::LinearCrossEntropyOptions options{.reduction = kernels::Reduction::kMean};
//   const auto mean = kernels::linear_cross_entropy(hidden, {base, added}, labels, options);
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

enum class Reduction : std::uint8_t {
  kNone,  // a loss per target
  kMean,  // over targets that are not ignored; 0 when all are
  kSum,
};

struct LinearCrossEntropyOptions {
  std::optional<at::Tensor> bias = {};  // [V], hidden's dtype
  std::int64_t ignore_index = -100;     // rows with this target: loss and lse exactly 0, no gradient
  std::optional<double> softcap = {};   // > 0: z = softcap * tanh(z / softcap)
  Reduction reduction = Reduction::kNone;
  std::int64_t shift = 0;    // hidden state s predicts target s + shift; 0 <= shift < S
  double z_loss_weight = 0;  // of the penalty lse^2 (PaLM, arXiv:2204.02311), part of the loss
  // Logits held at a time; smaller saves memory, larger helps matrix products. None: 2^20 on a CPU, 2^26 on a GPU,
  // 19 * 2^24 with gradients_in_forward.
  std::optional<std::int64_t> chunk_size = std::nullopt;
  // For a loss that goes on as a sum or a mean, so that every target gets the same gradient: makes the gradients
  // together with the loss, in three matrix products instead of four, and keeps them, as large as hidden and weights,
  // until the backward takes them; those of weights in fp32 where targets fill more than one chunk. Other gradients of
  // the loss, one of lse or a second backward are still right: they
  // are computed as without. bf16 on a GPU; elsewhere without effect.
  bool gradients_in_forward = false;
};

struct LinearCrossEntropyOutput {
  at::Tensor loss;  // [..., S], or a scalar when reduced; with shift the first `shift` of S are ignored
  at::Tensor lse;   // [..., S]
};

// Legend    H = hidden size, V = vocabulary.
// hidden    [..., S, H], floating.
// weight    [V, H] in hidden's dtype, or several [V_s, H] that make up the vocabulary in that order.
// targets   [..., S], int64, each in [0, V) or ignore_index.
// Returns   fp32 (fp64 for fp64 hidden). Logits, softmax and the sums of gradients are at least fp32. On a CPU there is
//           one rounding at the end; a GPU multiplies half precision as it is, so that the gradient of the logits is
//           rounded to it before its products, as a dense head rounds it. The gradient of a weight is summed over all
//           targets in fp32 and rounded once, when it is returned; where it has a place of fp32 (gradient_place), it is
//           added there and not rounded. Gradients made in forward: those of hidden and bias are rounded again when the
//           number that comes back is not a power of two, as that of a weight is where one chunk holds all targets;
//           those of weights are made of hidden times a number of its target's, rounded once more.
// Differentiable once in hidden, every weight and bias, through loss and lse. Keeps its inputs and lse; what a backward
// is not asked for is not computed. Memory beyond inputs, outputs and gradients: about chunk_size * (1 + H / 1024) wide
// numbers and, for half precision on a CPU, a wide copy of hidden; with gradients in forward chunk_size half-precision
// numbers, 2^24 wide ones, the rows of hidden of a chunk and, with more than one chunk, 2 bytes a weight. Local. Does
// not wait for a GPU. Throws ConfigError on what does not fit. A target outside the vocabulary throws on the CPU; on
// other devices, where looking would wait for the device, its loss is NaN.
[[nodiscard]] LinearCrossEntropyOutput linear_cross_entropy(const at::Tensor& hidden, at::TensorList weight,
                                                            const at::Tensor& targets,
                                                            const LinearCrossEntropyOptions& options = {});

}  // namespace d9d::kernels
