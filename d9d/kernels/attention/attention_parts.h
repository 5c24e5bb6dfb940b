// Attention in parts, for tensors that have more elements than the 32-bit indices of the fused kernels reach: a query
// of 524,288 positions of 32 heads of 128 features has 2^31. A part is some sequences of the batch, or some heads of
// keys of one sequence with all heads of queries that read them. Parts share nothing, so none is summed.
//
// Example
//   const auto parts = attention_parts(AttentionSizes::of(tensors, /*is_backward=*/false), kMaxElements);
//   const FusedForward result = forward_in_parts(tensors, sinks, parts, [&](const FusedTensors& part, const at::Tensor&
//                                                                           sinks_of_part) { return kernel(part); });
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/attention/fused_kernels.h"

namespace d9d::kernels::detail {

struct AttentionSizes {
  std::int64_t batch = 0;
  std::int64_t num_queries = 0;
  std::int64_t num_keys = 0;
  std::int64_t num_packed = 0;  // packed sequences; 0 for dense ones
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t num_features = 0;
  bool is_backward = false;

  [[nodiscard]] static AttentionSizes of(const FusedTensors& tensors, bool is_backward);
};

struct AttentionPart {
  std::int64_t first_sequence = 0;
  std::int64_t num_sequences = 0;
  std::int64_t first_kv_head = 0;
  std::int64_t num_kv_heads = 0;
  bool operator==(const AttentionPart&) const = default;
};

// As few parts as have fewer than max_elements each, of about the same size. Counts what a kernel addresses, also
// inside: a backward pass pads positions, of each packed sequence too, and features to whole tiles, and makes gradients
// of keys for each head of queries. Throws ConfigError if one head of keys of one sequence takes more.
[[nodiscard]] std::vector<AttentionPart> attention_parts(const AttentionSizes& sizes, std::int64_t max_elements);

// The result of `kernel` for all parts. The tensors that it gets may be views with strides. A single part is passed on.
using ForwardOfPart = std::function<FusedForward(const FusedTensors& part, const at::Tensor& sinks)>;
[[nodiscard]] FusedForward forward_in_parts(const FusedTensors& tensors, const at::Tensor& sinks,
                                            const std::vector<AttentionPart>& parts, const ForwardOfPart& kernel);

// The results of a forward pass and the gradients that arrive, [B, S, Hq, D] and [B, Hq, S] or undefined.
struct BackwardInputs {
  FusedForward forward;
  at::Tensor grad_out;
  at::Tensor grad_logsumexp;
};
using BackwardOfPart = std::function<FusedGradients(const FusedTensors& part, const BackwardInputs& inputs)>;
[[nodiscard]] FusedGradients backward_in_parts(const FusedTensors& tensors, const BackwardInputs& inputs,
                                               const std::vector<AttentionPart>& parts, const BackwardOfPart& kernel);

}  // namespace d9d::kernels::detail
