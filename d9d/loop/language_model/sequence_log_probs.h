// Log-probabilities of given tokens, from the cross-entropy that the head of a language model computes.
//
// Example
//   const at::Tensor each = token_log_probs(output.head.cross_entropy);                    // [B, S]
//   const at::Tensor whole = sequence_log_probs(output.head.cross_entropy, positions);     // [B], for a loss
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// Local. cross_entropy [B, S], as LanguageModellingOutput has it -> [B, S]: the log-probability of each label given the
// tokens before it, 0 at positions without a label.
[[nodiscard]] at::Tensor token_log_probs(const at::Tensor& cross_entropy);

// The log-probability of the labels of each sequence together, [B]: the sum of token_log_probs() over its positions.
// Collective over `positions`, the ranks that share a sequence (axis "cp"), in forward and in backward; the sums are
// equal on them. The gradient is that of the sum of the ranks' losses: each of them computes the loss from the sums,
// and gives it the weight that it has for one rank.
[[nodiscard]] at::Tensor sequence_log_probs(const at::Tensor& cross_entropy, const DeviceMesh& positions);

}  // namespace d9d
