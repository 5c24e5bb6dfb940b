#include "d9d/parallelism/context/choose_context_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/check.h"
#include "d9d/parallelism/context/heads_attention.h"

namespace d9d {
namespace {

constexpr std::array kMethods = {ContextAttention::kGathered, ContextAttention::kHeads, ContextAttention::kRing};

// The link is measured between GPUs of one machine (benchmarks/results/tensor_parallel_h200_2026-11-29.md), memory and
// products are rounded from what one reaches, and the time of an exchange is an estimate. Only their ratios decide.
constexpr double kLinkBytesPerSecond = 330e9;
constexpr double kMemoryBytesPerSecond = 4e12;
constexpr double kFlopsPerSecond = 500e12;
constexpr double kSecondsPerExchange = 20e-6;

// The reason why a method does not take the call; nullopt if it does.
std::optional<std::string> refusal(ContextAttention method, const ContextAttentionCall& call) {
  if (method == ContextAttention::kRing) return call.no_ring.empty() ? std::nullopt : std::optional(call.no_ring);
  if (method == ContextAttention::kGathered) {
    const bool looks_ahead = call.longest_packed && call.window && !call.is_causal;
    return looks_ahead ? std::optional("takes no packed sequences with a window of attention that is not causal")
                       : std::nullopt;
  }
  if (call.has_mask) return "takes no attention mask";
  if (ranks_divide_heads(call.num_ranks, call.num_heads, call.num_kv_heads)) return std::nullopt;
  return cat("gives ", call.num_ranks, " ranks no equal shares of ", call.num_heads, " heads of queries and ",
             call.num_kv_heads, " of keys");
}

// The keys that a query sees, on average, at most.
double num_seen(const ContextAttentionCall& call) {
  const std::int64_t length = std::min(call.num_positions, call.longest_packed.value_or(call.num_positions));
  const auto seen = static_cast<double>(std::min(length, call.window.value_or(length)));
  return call.is_causal ? seen - seen * seen / (2 * static_cast<double>(length)) : seen;
}

// Seconds that attention waits for other ranks in a forward pass. A backward pass moves as much.
double exposed_seconds(ContextAttention method, const ContextAttentionCall& call) {
  const auto ranks = static_cast<double>(call.num_ranks);
  const auto heads = static_cast<double>(call.num_heads), kv_heads = static_cast<double>(call.num_kv_heads);
  const double positions = static_cast<double>(call.batch * call.num_positions);
  const double head_bytes = positions * static_cast<double>(call.num_features * call.element_bytes);
  const double of_others = (ranks - 1) / ranks;
  if (method == ContextAttention::kHeads) {
    const double bytes = (2 * heads + 2 * std::max(kv_heads, ranks)) * head_bytes / ranks;
    return 2 * kSecondsPerExchange + of_others * bytes / kLinkBytesPerSecond +
           4 * bytes / kMemoryBytesPerSecond;  // parts are joined, and put in order
  }
  const double bytes = 2 * kv_heads * head_bytes, moves = of_others * bytes / kLinkBytesPerSecond;
  if (method == ContextAttention::kGathered) {
    return kSecondsPerExchange + moves + 2 * bytes / kMemoryBytesPerSecond;  // parts are put in order
  }
  const double pairs = positions * num_seen(call);
  const double computes = 4 * heads * static_cast<double>(call.num_features) * pairs / ranks / kFlopsPerSecond;
  return (ranks - 1) * kSecondsPerExchange + std::max(0.0, moves - of_others * computes);
}

std::vector<ContextAttention> those_that_take(const ContextAttentionCall& call) {
  std::vector<ContextAttention> methods(kMethods.begin(), kMethods.end());
  std::erase_if(methods, [&](ContextAttention method) { return refusal(method, call).has_value(); });
  return methods;
}

std::string names_of(const std::vector<ContextAttention>& methods) {
  std::string names(enum_name(ContextAttention::kAuto));
  for (const ContextAttention method : methods) names += cat(" or ", enum_name(method));
  return names;
}

}  // namespace

ContextAttentionCall context_attention_call(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                            std::int64_t num_ranks) {
  ContextAttentionCall call{.num_ranks = num_ranks,
                            .batch = inputs.query.size(0),
                            .num_positions = inputs.query.size(1) * num_ranks,
                            .num_heads = inputs.query.size(2),
                            .num_kv_heads = inputs.key.size(2),
                            .num_features = inputs.query.size(3),
                            .element_bytes = static_cast<std::int64_t>(inputs.query.element_size()),
                            .is_causal = options.causal,
                            .has_mask = inputs.mask.has_value()};
  if (options.window_left || options.window_right) {
    call.window = options.window_left.value_or(call.num_positions) + 1 +
                  (options.causal ? 0 : options.window_right.value_or(call.num_positions));
  }
  if (inputs.packed) call.longest_packed = inputs.packed->max_length;
  return call;
}

ContextAttentionChoice choose_context_attention(const ContextAttentionCall& call, ContextAttention configured) {
  const std::vector<ContextAttention> methods = those_that_take(call);
  if (methods.empty()) return {.method = ContextAttention::kGathered, .why = "it says why none takes the call"};
  if (configured != ContextAttention::kAuto) {
    const std::optional<std::string> reason = refusal(configured, call);
    D9D_CHECK(!reason, ConfigError, "[parallelism::context] expected model_provider.context_parallel.attention to be ",
              names_of(methods), " here, got ", enum_name(configured), ", which ", *reason, ". Change it.");
    return {.method = configured, .why = "it is configured"};
  }
  ContextAttention best = methods.front();
  for (const ContextAttention method : methods) {
    if (exposed_seconds(method, call) < exposed_seconds(best, call)) best = method;
  }
  const auto microseconds = static_cast<std::int64_t>(std::ceil(exposed_seconds(best, call) * 1e6));
  return {.method = best, .why = cat("it waits for other ranks for the least time, ", microseconds, " us")};
}

}  // namespace d9d
