#include "d9d/kernels/attention/attention_parts.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"

namespace d9d::kernels::detail {
namespace {

constexpr std::int64_t kPositionsOfTile = 128, kFeaturesOfTile = 64;
constexpr std::int64_t kHeads = 2, kHeadsOfLogsumexp = 1;  // dims of [B, S, H, D] and of [B, H, S]

// Narrows tensors of heads to a part. Undefined ones stay so.
class Narrowing {
 public:
  Narrowing(const AttentionPart& part, const FusedTensors& tensors)
      : part_(part), group_(tensors.query.size(kHeads) / tensors.key.size(kHeads)) {}

  [[nodiscard]] at::Tensor of_queries(const at::Tensor& x, std::int64_t dim = kHeads) const {
    return x.defined() ? of_heads(of_sequences(x), dim, group_) : x;
  }
  [[nodiscard]] at::Tensor of_keys(const at::Tensor& x) const { return of_heads(of_sequences(x), kHeads, 1); }
  [[nodiscard]] at::Tensor of_sinks(const at::Tensor& x) const { return x.defined() ? of_heads(x, 0, group_) : x; }

 private:
  [[nodiscard]] at::Tensor of_sequences(const at::Tensor& x) const {
    return x.narrow(0, part_.first_sequence, part_.num_sequences);
  }
  [[nodiscard]] at::Tensor of_heads(const at::Tensor& x, std::int64_t dim, std::int64_t heads_of_key) const {
    return x.narrow(dim, part_.first_kv_head * heads_of_key, part_.num_kv_heads * heads_of_key);
  }

  AttentionPart part_;
  std::int64_t group_;  // heads of queries that read a head of keys
};

FusedTensors tensors_of(const Narrowing& part, const FusedTensors& tensors) {
  FusedTensors result = tensors;
  result.query = part.of_queries(tensors.query);
  result.key = part.of_keys(tensors.key);
  result.value = part.of_keys(tensors.value);
  return result;
}

// Returns the elements of the queries that read one head of keys in one sequence, or of that head.
std::int64_t elements_of_kv_head(const AttentionSizes& sizes) {
  const std::int64_t group = sizes.num_heads / sizes.num_kv_heads;
  if (!sizes.is_backward) return std::max(sizes.num_queries * group, sizes.num_keys) * sizes.num_features;
  const std::int64_t num_positions =
      round_up(std::max(sizes.num_queries, sizes.num_keys), kPositionsOfTile) + sizes.num_packed * kPositionsOfTile;
  return num_positions * group * round_up(sizes.num_features, kFeaturesOfTile);
}

}  // namespace

AttentionSizes AttentionSizes::of(const FusedTensors& tensors, bool is_backward) {
  return {.batch = tensors.query.size(0),
          .num_queries = tensors.query.size(1),
          .num_keys = tensors.key.size(1),
          .num_packed = tensors.cu_seqlens.defined() ? tensors.cu_seqlens.numel() - 1 : 0,
          .num_heads = tensors.query.size(kHeads),
          .num_kv_heads = tensors.key.size(kHeads),
          .num_features = tensors.query.size(3),
          .is_backward = is_backward};
}

std::vector<AttentionPart> attention_parts(const AttentionSizes& sizes, std::int64_t max_elements) {
  const std::int64_t of_kv_head = elements_of_kv_head(sizes);
  const std::int64_t most_heads = (max_elements - 1) / of_kv_head;  // of all sequences of a part
  D9D_CHECK(most_heads > 0, ConfigError, "[kernels::attention] expected fewer than ", max_elements,
            " elements for one head of keys, which the indices of the kernels reach, got ", of_kv_head, " for ",
            sizes.num_queries, " queries and ", sizes.num_keys, " keys of ", sizes.num_features, " features, and ",
            sizes.num_heads / sizes.num_kv_heads,
            " heads of queries that read them. Use more context-parallel ranks, or shorter sequences.");
  const std::int64_t heads_of_part =
      divide_up(sizes.num_kv_heads, divide_up(sizes.num_kv_heads, std::min(most_heads, sizes.num_kv_heads)));
  const std::int64_t most_sequences = std::max<std::int64_t>(1, most_heads / sizes.num_kv_heads);
  const std::int64_t sequences_of_part =
      divide_up(sizes.batch, divide_up(sizes.batch, std::min(most_sequences, sizes.batch)));
  std::vector<AttentionPart> parts;
  for (std::int64_t sequence = 0; sequence < sizes.batch; sequence += sequences_of_part) {
    for (std::int64_t head = 0; head < sizes.num_kv_heads; head += heads_of_part) {
      parts.push_back({.first_sequence = sequence,
                       .num_sequences = std::min(sequences_of_part, sizes.batch - sequence),
                       .first_kv_head = head,
                       .num_kv_heads = std::min(heads_of_part, sizes.num_kv_heads - head)});
    }
  }
  return parts;
}

FusedForward forward_in_parts(const FusedTensors& tensors, const at::Tensor& sinks,
                              const std::vector<AttentionPart>& parts, const ForwardOfPart& kernel) {
  if (parts.size() == 1) return kernel(tensors, sinks);
  FusedForward result{.out = at::empty(tensors.query.sizes(), tensors.query.options())};
  for (const AttentionPart& each : parts) {
    const Narrowing part(each, tensors);
    const FusedForward of_part = kernel(tensors_of(part, tensors), part.of_sinks(sinks));
    if (!result.logsumexp.defined()) {
      result.logsumexp = at::empty({tensors.query.size(0), tensors.query.size(kHeads), tensors.query.size(1)},
                                   of_part.logsumexp.options());
    }
    part.of_queries(result.out).copy_(of_part.out);
    part.of_queries(result.logsumexp, kHeadsOfLogsumexp).copy_(of_part.logsumexp);
  }
  return result;
}

FusedGradients backward_in_parts(const FusedTensors& tensors, const BackwardInputs& inputs,
                                 const std::vector<AttentionPart>& parts, const BackwardOfPart& kernel) {
  if (parts.size() == 1) return kernel(tensors, inputs);
  const auto empty_like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const FusedGradients result{
      .query = empty_like(tensors.query), .key = empty_like(tensors.key), .value = empty_like(tensors.value)};
  for (const AttentionPart& each : parts) {
    const Narrowing part(each, tensors);
    const FusedGradients of_part =
        kernel(tensors_of(part, tensors),
               {.forward = {.out = part.of_queries(inputs.forward.out),
                            .logsumexp = part.of_queries(inputs.forward.logsumexp, kHeadsOfLogsumexp)},
                .grad_out = part.of_queries(inputs.grad_out),
                .grad_logsumexp = part.of_queries(inputs.grad_logsumexp, kHeadsOfLogsumexp)});
    part.of_queries(result.query).copy_(of_part.query);
    part.of_keys(result.key).copy_(of_part.key);
    part.of_keys(result.value).copy_(of_part.value);
  }
  return result;
}

}  // namespace d9d::kernels::detail
