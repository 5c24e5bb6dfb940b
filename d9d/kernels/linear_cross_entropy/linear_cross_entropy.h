// The cross-entropy of a linear head, without ever storing all logits. They are computed in chunks, either twice, in
// the forward and again in the backward (Wijmans et al., arXiv:2411.09009), or once, together with the gradients. That
// paper's approximate gradient filter is an option.
//
//   z = softcap(hidden * weight^T + bias)     lse = logsumexp(z)     loss = lse - z[target] + z_loss_weight * lse^2
//
// A head with an adapter adds a product of low rank to hidden * weight^T, without a further pass over the logits.
//
// Example
//   const auto output = kernels::linear_cross_entropy(hidden, head->weight(), labels);      // loss [B, S], fp32
//   const kernels::LinearCrossEntropyOptions options{.reduction = kernels::Reduction::kMean};
//   const auto mean = kernels::linear_cross_entropy(hidden, {base, added}, labels, options);
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

enum class Reduction : std::uint8_t {
  kNone,  // a loss per target
  kMean,  // over targets that are not ignored; 0 if all are ignored
  kSum,
};

// A term u * B^T of the logits: of an adapter B A of the weight, where u = scale * hidden A^T.
struct LowRankLogits {
  at::Tensor hidden;                // u [..., S, r], hidden's dtype
  std::vector<at::Tensor> weights;  // B [V_s, r] for each weight, hidden's dtype
};

// The weights are a part of a vocabulary whose other parts are on other ranks.
struct VocabularyShard {
  // Collective. x [N, T] of each rank, contiguous -> [W, N, T], contiguous, in the order of the W ranks. Called during
  // the forward alone, once or for each chunk of rows.
  std::function<at::Tensor(const at::Tensor& x)> gather;
  std::int64_t most_rows = 0;  // as many rows of weights as any rank has, or more; the same on all ranks
};

struct LinearCrossEntropyOptions {
  std::optional<at::Tensor> bias = {};         // [V], hidden's dtype
  std::optional<LowRankLogits> low_rank = {};  // added before the softcap
  std::int64_t ignore_index = -100;            // rows with this target have loss and lse exactly 0 and no gradient
  std::optional<double> softcap = {};          // > 0: z = softcap * tanh(z / softcap)
  Reduction reduction = Reduction::kNone;
  std::int64_t shift = 0;    // hidden state s predicts target s + shift; 0 <= shift < S
  double z_loss_weight = 0;  // weight of the penalty lse^2 (PaLM, arXiv:2204.02311), which is part of the loss
  // Number of logits stored at a time: less saves memory, more makes matrix products faster. Unset: 2^20 on a CPU, 2^26
  // on a GPU, 19 * 2^24 with gradients_in_forward.
  std::optional<std::int64_t> chunk_size = std::nullopt;
  // Computes the gradients together with the loss, in three matrix products instead of four, for a loss that is summed
  // or averaged, so that all targets get the same gradient. The gradients, as large as hidden and the weights, are kept
  // until the backward takes them; those of weights are in fp32 if the targets fill more than one chunk. Other
  // gradients of the loss, a gradient of lse, and a second backward are still right: they are computed as without this
  // option. Has an effect only for bf16 on a GPU.
  bool gradients_in_forward = false;
  // The gradient filter: gradients of e (hidden) and c (the weights) leave out tiles of tokens by vocabulary in which
  // every |softmax - onehot(target)| is below filter_eps. Unset: nothing is left out. > 0. The presets by name and the
  // automatic value: linear_cross_entropy_preset.h.
  std::optional<double> filter_eps = {};
  bool filter_e_grad = true;                  // false: the gradient of hidden is whole
  bool filter_c_grad = true;                  // false: gradients of weights are whole. That of the bias always is.
  std::optional<VocabularyShard> shard = {};  // unset: the weights are the whole vocabulary
};

struct LinearCrossEntropyOutput {
  at::Tensor loss;  // [..., S], or a scalar when reduced; with shift the first `shift` of S are 0
  at::Tensor lse;   // [..., S]
};

// Legend    H = hidden size, V = vocabulary.
// hidden    [..., S, H], floating.
// weight    [V, H] in hidden's dtype, or several [V_s, H] that make up the vocabulary in that order.
// targets   [..., S], int64, each in [0, V) or ignore_index.
// Returns   fp32 (fp64 for fp64 hidden). Logits, softmax and sums of gradients are in at least fp32. On a CPU results
//           are rounded once, at the end. A GPU multiplies half precision directly, so that the gradient of the logits
//           is rounded to half precision before its products, as in a dense head. The gradient of a weight is summed
//           over all targets in fp32 and rounded once, when it is returned; if the weight has an fp32 place
//           (gradient_place), it is added there without rounding. With gradients_in_forward there are further
//           roundings. Gradients of hidden and bias, and those of weights if one chunk holds all targets, are rounded
//           again by the multiplication with the loss's gradient unless that is a power of two. Gradients of weights
//           are products with rows of hidden times a factor of the row, which is rounded.
// Filter    With g[t, v] the gradient of logit v of target t, before the softcap, and s[t] the greater of its factors
//           of softmax and onehot, |gradient of the loss| unless there are z-loss or a gradient of lse, a tile is left
//           out where all |g[t, v]| < filter_eps * s[t]. So with sums over what was left out
//             |error of hidden's gradient [t, h]| <= filter_eps * s[t] * sum_v |weight[v, h]|
//             |error of a weight's gradient [v, h]| <= filter_eps * sum_t s[t] * |hidden[t, h]|
//           and the same for a term of low rank, with u as hidden and B as the weight.
//           On a CPU a tile is one row of a weight by the targets of a chunk, up to 1,024, and its products are
//           skipped. On a GPU with this op's kernels it is one target by 256 rows of a weight, and the gradient of its
//           logits becomes zero, after it was rounded to half precision: the products take as long, or less where a
//           limit of power slows them. So results differ between devices, chunk sizes and ranks, within the bound.
// Shard     V, bias and targets are of this rank's part; a target on another rank is any other id than ignore_index,
//           and no error. Loss and lse are of the whole vocabulary, bit-equal on all ranks; the loss is NaN if no rank
//           has the target. The gradient of hidden is a summand: the sum over the ranks is that of the whole
//           vocabulary. Sizes of hidden, options and which tensors require gradients are the same on all ranks.
// Differentiable once in hidden, every weight, bias and both factors of low_rank, through loss and lse. Saves its
// inputs and lse; computes only the gradients that a backward asks for. Memory beyond inputs, outputs and gradients:
// about chunk_size * (1 + H / 1024) wide numbers (fp32, or fp64 for fp64 hidden) and, for half precision on a CPU, a
// wide copy of hidden; with gradients in forward chunk_size half-precision numbers, 2^24 wide ones, the rows of hidden
// of a chunk and, with more than one chunk, 2 bytes per weight. Local, with a shard Collective; the backward is Local.
// Does not synchronise with a GPU. Throws ConfigError on arguments that do not fit. A target outside the vocabulary
// throws ConfigError on the CPU; on other devices, where a check would have to synchronise, its loss is NaN.
[[nodiscard]] LinearCrossEntropyOutput linear_cross_entropy(const at::Tensor& hidden, at::TensorList weight,
                                                            const at::Tensor& targets,
                                                            const LinearCrossEntropyOptions& options = {});

}  // namespace d9d::kernels
