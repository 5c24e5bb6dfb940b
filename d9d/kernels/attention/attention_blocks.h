// Attention to keys that arrive in blocks (ring attention, Liu et al., arXiv:2310.01889). Each block is computed alone.
// Results are merged by their logsumexps. The gradients of a block, computed from the merged result, are those of
// attention to all keys together: so nothing needs the gradient of the merge. No function here records a graph.
// Tensors of the meta device stand for those of a GPU.
//
// Example, two blocks of keys, all of which each query sees
//   const SdpaOutput one = attend_to_block({.query = q, .key = k1, .value = v1}, {}, preferences);
//   const SdpaOutput other = attend_to_block({.query = q, .key = k2, .value = v2}, {}, preferences);
//   const SdpaOutput whole = merge_blocks({{one}, {other}}, q);
//   const SdpaGradients first = block_gradients(grad, {.query = q, .key = k1, .value = v1}, whole, {}, preferences);
//   const SdpaGradients second = block_gradients(grad, {.query = q, .key = k2, .value = v2}, whole, {}, preferences);
//   // of k1, v1: first.key, first.value; of q: first.query + second.query
//
// Legend   B batch, S queries, Hq query heads, D features per head
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/attention/scaled_dot_product_attention.h"

namespace d9d::kernels {

// The result for a block of keys, by the fastest kernel that returns a logsumexp. Takes no sinks. Packed sequences, and
// their packed_keys, may be in B rows, one after another. The logsumexp is contiguous.
[[nodiscard]] SdpaOutput attend_to_block(const SdpaInputs& inputs, const SdpaOptions& options,
                                         const SdpaPreferences& preferences = {});

struct SdpaPart {
  SdpaOutput result;             // of queries first_query, ... and one block of keys
  std::int64_t first_query = 0;  // the others see nothing of the block
};

// The result for the keys of all parts, and for the sinks [Hq]. query: [B, S, Hq, D], for its shape. Sums in at least
// float, whatever the dtype of the parts. A query that no part has gets zeros, and the logsumexp -inf.
[[nodiscard]] SdpaOutput merge_blocks(const std::vector<SdpaPart>& parts, const at::Tensor& query,
                                      const std::optional<at::Tensor>& sinks = std::nullopt);

struct SdpaGradients {
  at::Tensor query;  // as the inputs; that of values may have rows in a larger buffer (fused_attention)
  at::Tensor key;
  at::Tensor value;
};

// The share of a block in the gradients. inputs and options: of attend_to_block(). grad_out, and `merged`, of
// merge_blocks(): for the queries of `inputs`, with any strides.
[[nodiscard]] SdpaGradients block_gradients(const at::Tensor& grad_out, const SdpaInputs& inputs,
                                            const SdpaOutput& merged, const SdpaOptions& options,
                                            const SdpaPreferences& preferences = {});

// The gradient of the sinks, [Hq] in their dtype.
[[nodiscard]] at::Tensor sink_gradient(const at::Tensor& grad_out, const SdpaOutput& merged, const at::Tensor& sinks);

}  // namespace d9d::kernels
