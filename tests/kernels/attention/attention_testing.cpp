#include "tests/kernels/attention/attention_testing.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "d9d/base/check.h"

#include "tests/support/tolerances.h"

namespace d9d::kernels::attention_testing {
namespace {

using ::d9d::testing::outputs_and_gradients;
using ::d9d::testing::values;
using Tensors = std::vector<at::Tensor>;

// Computes each sequence separately.
SdpaOutput eager_of_each(const AttentionCase& each, const SdpaInputs& inputs, SdpaOptions options) {
  if (each.lengths.empty()) return eager_attention(inputs, options);
  const std::vector<int>& key_lengths = each.key_lengths.empty() ? each.lengths : each.key_lengths;
  Tensors outs, logsumexps;
  std::int64_t first_query = 0, first_key = 0;
  for (std::size_t n = 0; n < key_lengths.size(); ++n) {
    const int num_queries = each.lengths[n], num_keys = key_lengths[n];
    const auto keys = [&](const at::Tensor& x) { return x.narrow(1, first_key, num_keys); };
    const auto query = inputs.query.narrow(1, first_query, num_queries);
    const auto key = keys(inputs.key), value = keys(inputs.value);
    options.first_query = num_keys - num_queries;
    const auto [out, logsumexp] =
        eager_attention({.query = query, .key = key, .value = value, .sinks = inputs.sinks}, options);
    outs.push_back(out);
    logsumexps.push_back(logsumexp);
    first_query += num_queries;
    first_key += num_keys;
  }
  return {.out = at::cat(outs, 1), .logsumexp = at::cat(logsumexps, 2)};
}

double distance(const at::Tensor& actual, const at::Tensor& expected) {
  return (actual.to(at::kDouble) - expected.to(at::kDouble)).norm().item<double>();
}

}  // namespace

std::vector<AttentionCase> bands() {
  return {{.name = "full"},
          {.name = "causal", .options = {.causal = true}},
          {.name = "causal_window", .options = {.causal = true, .window_left = 40}},
          {.name = "itself", .options = {.causal = true, .window_left = 0}},
          {.name = "window_both_ways", .options = {.window_left = 20, .window_right = 10}},
          {.name = "window_left", .options = {.window_left = 33}},
          {.name = "window_right", .options = {.window_right = 33}},
          {.name = "causal_wide_window", .options = {.causal = true, .window_left = 1000}}};
}

std::optional<PackedSequences> packed_of(const std::vector<int>& lengths, at::Device device) {
  if (lengths.empty()) return std::nullopt;
  const auto ends = at::cumsum(at::tensor(lengths, at::kInt), 0, at::kInt);
  return PackedSequences{.cu_seqlens = at::cat({at::zeros({1}, at::kInt), ends}).to(device),
                         .max_length = *std::max_element(lengths.begin(), lengths.end())};
}

Tensors inputs_of(const AttentionCase& each, at::ScalarType dtype) {
  const auto total = [](const std::vector<int>& lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  };
  const bool is_packed = !each.lengths.empty();
  const std::int64_t batch = is_packed ? 1 : each.batch;
  const std::int64_t num_queries = is_packed ? total(each.lengths) : each.num_queries;
  const std::int64_t packed_keys = total(each.key_lengths.empty() ? each.lengths : each.key_lengths);
  const std::int64_t num_keys = is_packed ? packed_keys : each.num_keys;
  Tensors inputs = {values({batch, num_queries, each.num_heads, each.num_features}, 1, dtype),
                    values({batch, num_keys, each.num_kv_heads, each.num_features}, 2, dtype),
                    values({batch, num_keys, each.num_kv_heads, each.num_features}, 3, dtype)};
  if (each.has_sinks) inputs.push_back(values({each.num_heads}, 4, at::kFloat));
  return inputs;
}

Tensors on_gpu(const Tensors& tensors) {
  Tensors result;
  for (const auto& each : tensors) result.push_back(each.to(at::kCUDA));
  return result;
}

TensorFunction function_of(const AttentionCase& each, const Core& core) {
  return [each, core](const Tensors& in) {
    SdpaInputs inputs{.query = in[0],
                      .key = in[1],
                      .value = in[2],
                      .sinks = each.has_sinks ? std::optional(in[3]) : std::nullopt,
                      .packed = packed_of(each.lengths, in[0].device())};
    if (const auto keys = packed_of(each.key_lengths, in[0].device())) {
      inputs.packed_keys = PackedKeys{.cu_seqlens = keys->cu_seqlens, .lengths = {}, .max_length = keys->max_length};
    }
    const SdpaOutput result = core(inputs, each.options);
    return each.returns_logsumexp ? Tensors{result.out, result.logsumexp} : Tensors{result.out};
  };
}

std::string error_against_eager(const AttentionCase& each, at::ScalarType dtype, const Core& core) {
  const Tensors inputs = inputs_of(each, dtype);
  Tensors actual;
  try {
    actual = outputs_and_gradients(function_of(each, core), on_gpu(inputs));
  } catch (const std::exception& error) {
    return std::string(error.what()).substr(0, 600);
  }
  const auto reference = [&](const SdpaInputs& all, const SdpaOptions& options) {
    return eager_of_each(each, all, options);
  };
  Tensors wide;
  for (const auto& input : inputs) wide.push_back(input.to(at::kCUDA, at::kDouble));
  const Tensors exact = outputs_and_gradients(function_of(each, reference), wide);
  const double allowed = test::tolerance(dtype == at::kHalf ? "half attention" : "bf16 attention").value;
  std::string worst;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (!actual[i].defined() || actual[i].sizes() != exact[i].sizes()) return cat("result ", i, ": missing");
    const double scale = std::max(exact[i].norm().item<double>(), 1.0);  // a query that sees one key has no gradient
    const double error = distance(actual[i], exact[i]) / scale;
    if (!(error <= allowed)) worst += cat("result ", i, ": relative error ", error, "; ");
  }
  return worst;
}

std::string error_of(const AttentionCase& each, FusedSdpaKernel kernel, at::ScalarType dtype) {
  return error_against_eager(each, dtype, [kernel](const SdpaInputs& inputs, const SdpaOptions& options) {
    return fused_attention(inputs, options, kernel);
  });
}

bool is_near(const at::Tensor& actual, const at::Tensor& expected) {
  const double scale = expected.to(at::kDouble).norm().item<double>();
  return distance(actual, expected) <= test::tolerance("bf16 attention").value * scale;
}

Deterministic::Deterministic() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false); }
Deterministic::~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }

}  // namespace d9d::kernels::attention_testing
